"""The door for library authors: definitions of tensor operations, in nvFuser's vocabulary.

`tilewright.FusionDefinition` adds execution to `Definition`.
"""

from tilewright.fusion.definition import DataType, Definition, Scalar, Size, Tensor

__all__ = ["DataType", "Definition", "Scalar", "Size", "Tensor"]

"""The proofs of a lowered kernel. They read the kernel IR and the target, nothing else."""

from tilewright.lower.obligations.report import error_of, raise_first_refuted, report, verify

__all__ = ["error_of", "raise_first_refuted", "report", "verify"]

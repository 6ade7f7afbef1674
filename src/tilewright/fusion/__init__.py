"""The door for library authors: definitions of tensor operations, in nvFuser's vocabulary."""

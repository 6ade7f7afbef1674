"""tilewright: GPU tile kernels, distributed over the machine and proved gap-free."""

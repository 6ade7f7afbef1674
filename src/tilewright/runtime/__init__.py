"""Toolchains, the cache of compiled kernels, arguments of calls, launches and timing."""

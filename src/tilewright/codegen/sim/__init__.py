"""The simulator: executes kernel IR for any target on a machine with no GPU, with checks."""

from tilewright.codegen.sim.report import SharedTraffic, SimReport
from tilewright.codegen.sim.simulate import simulate

__all__ = ["SharedTraffic", "SimReport", "simulate"]

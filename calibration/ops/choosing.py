"""Which implementation of `DeviceOps` serves a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from foreshard.calibration.ops.device_ops import DeviceOps

__all__ = ["ops_on"]


def ops_on(device: torch.device, implementation: Literal["auto", "torch", "kernels"] = "auto") -> DeviceOps:
    """The operations of `device`: the CUDA kernels on CUDA devices, torch's elsewhere, or the one that is asked for.

    Raises MissingDependencyError where the kernels are to be used and CuPy is not installed.
    """
    if implementation == "kernels" or (implementation == "auto" and device.type == "cuda"):
        from foreshard.calibration.ops.kernel_ops import KernelOps

        return KernelOps(device)
    from foreshard.calibration.ops.torch_ops import TorchOps

    return TorchOps(device)

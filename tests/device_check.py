"""Find tensors that are made on the wrong device, on a machine that has one device only.

Under `TwoPlaces` every tensor is either on the host or on the device, whatever machine this is:
the network's weights are on the device, what is made with `device=` of another tensor or of the
model is there too, and what is made without `device=`, or with "cpu", is on the host. A call that
mixes both raises, as it would with a GPU, and so does `.numpy()` of a tensor of the device.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "_on_the_device"

_HOST_OK = {
    # A GPU takes indices, sources and templates of the host here.
    torch.Tensor.__getitem__,
    torch.Tensor.__setitem__,
    torch.Tensor.copy_,
    torch.Tensor.to,
    torch.Tensor.type_as,
}


class WrongDeviceError(AssertionError):
    """A call that would fail with a GPU."""


def on_device(tensor):
    """Whether a tensor counts as being on the device."""
    return getattr(tensor, DEVICE, False)


def move_network(network):
    """Put weights and tables on the device."""
    for tensor in (*network.parameters(), *network.buffers()):
        setattr(tensor, DEVICE, True)


class TwoPlaces(TorchFunctionMode):
    """A host and a device, told apart by what each call was asked."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        """Calls that had a tensor of the device."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):
            result = func(*args, **kwargs)
            return _tag(result, given, any(map(on_device, given)))
        device = any(map(on_device, given))
        self.calls += device
        asked = _asked_device(func, name, args, kwargs)
        if asked is None:
            self._refuse_mixture(func, name, given)
        result = func(*args, **kwargs)
        return _tag(result, given, device if asked is None else asked, moves=asked is not None)

    def _refuse_mixture(self, func, name, given):
        places = {on_device(x) for x in given if x.ndim}
        if name in ("numpy", "__array__", "from_numpy") and True in places:
            raise WrongDeviceError(f"{name} of a tensor on the device: say .cpu() first")
        if len(places) == 2 and func not in _HOST_OK:
            shapes = [(list(x.shape), "device" if on_device(x) else "host") for x in given]
            raise WrongDeviceError(f"{name} takes tensors of two places: {shapes}")


def _asked_device(func, name, args, kwargs):
    """True for the device, False for the host, None where a call says neither."""
    if name == "cpu":
        return False
    asked = kwargs.get("device")
    if name == "to":
        words = [x for x in args[1:] if isinstance(x, str | torch.device | torch.Tensor)]
        asked = asked if asked is not None else (words[0] if words else None)
        if isinstance(asked, torch.Tensor):
            return on_device(asked)
    if asked is None:
        return None
    return not isinstance(asked, str)  # "cpu" as a word is the host


def _tag(result, given, device, *, moves=False):
    def tag(x):
        if not isinstance(x, torch.Tensor):
            return x
        if any(x is other for other in given):
            if not moves or on_device(x) == device:
                return x
            x = torch.ops.aten.alias(x)  # moved: another tensor, of the same memory
        if device:
            setattr(x, DEVICE, True)
        elif on_device(x):
            setattr(x, DEVICE, False)
        return x

    return tree_map(tag, result)

"""NVIDIA's cards, by NVML (libnvidia-ml), which every driver brings along."""

import ctypes
from collections.abc import Sequence
from typing import Any, Final

NVML_LIBRARY: Final = "libnvidia-ml.so.1"


class NvidiaCards:
    """The cards of this machine, in NVML's order. A call that fails raises OSError."""

    def __init__(self, library: Any = None) -> None:
        """`library`: NVML; None: it is loaded. Raises OSError where it shows no card."""
        self.library = ctypes.CDLL(NVML_LIBRARY) if library is None else library
        self.handles = list[ctypes.c_void_p]()
        self.call("nvmlInit_v2")
        count = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for number in range(count.value):
            card = ctypes.c_void_p()
            self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(card))
            self.handles.append(card)
        if not self.handles:
            raise OSError("it shows no card")

    def call(self, name: str, *arguments: Any, beside: Sequence[int] = ()) -> int:
        """Call a function; return its code, 0 or one of `beside`."""
        code = int(self.library[name](*arguments))
        if code and code not in beside:
            raise OSError(f"{name} failed with {code}")
        return code

    def number(self, name: str, card: ctypes.c_void_p, *arguments: Any) -> int:
        """Return the unsigned number that a function gives of a card."""
        value = ctypes.c_uint()
        self.call(name, card, *arguments, ctypes.byref(value))
        return value.value

    def name(self, card: ctypes.c_void_p) -> str:
        """Return the name of a card, without the vendor's."""
        text = ctypes.create_string_buffer(96)
        self.call("nvmlDeviceGetName", card, text, ctypes.c_uint(96))
        return text.value.decode(errors="replace").removeprefix("NVIDIA ")

"""Kinds of GPU from NVIDIA's names for them."""

_NOT_A_MODEL = {"nvidia", "tesla", "quadro", "geforce", "graphics", "generation", "laptop", "gpu", "device"}
_FAMILIES = {"rtx", "gtx", "titan"}
_FORMS = ("sxm", "pcie", "nvl", "hbm")


def kind_of(name: str) -> str:
    """Return a GPU's kind in one word from the driver's name: ``NVIDIA H100 80GB HBM3`` is ``h100``."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in _NOT_A_MODEL]
    model = [word for word in words if not word.startswith(_FORMS) and not word.endswith("gb")]
    if not model:
        return "-".join(words) or "gpu"
    return "-".join(model) if model[0] in _FAMILIES else model[0]

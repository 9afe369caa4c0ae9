"""What ``module:function`` names: code of the user's, which runs when it is imported."""

from __future__ import annotations

import importlib
from typing import Any

from slicebeam.metrics.errors import OptionError


def imported(name: str, option: str, form: str = "module:function") -> Any:
    """Return the function, or whatever else, of ``module:function``; dots lead into it."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"{option} {name}: {error}; write {form}, with a module that Python finds (set "
            "PYTHONPATH=. for this folder)"
        ) from error
    except Exception as error:
        raise OptionError(
            f"{option} {name}: importing {module} failed: {one_line(error)}"
        ) from error
    return found


def one_line(error: Exception) -> str:
    """Return an error of the user's code as its type and the beginning of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"

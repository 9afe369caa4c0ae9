"""Reads the text or the JSON of an EvalConfig as TFMA's message."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

from slicebeam.metrics.errors import OptionError, install_hint, nearest_hint

_NO_FIELD = re.compile(r'(?:[Mm]essage type ")([\w.]+)" has no field named "([\w]+)"')


def _messages() -> Any:
    """Return TFMA's module of messages; TFMA itself, which takes seconds, is not imported."""
    # It is needed by the messages, which do not import it.
    from google.protobuf import wrappers_pb2  # type: ignore[import-untyped]  # noqa: F401

    found = importlib.util.find_spec("tensorflow_model_analysis")
    places = (found.submodule_search_locations or ()) if found is not None else ()
    for place in places:
        path = Path(place) / "proto" / "config_pb2.py"
        spec = importlib.util.spec_from_file_location("tfma_config_pb2", path)
        if path.is_file() and spec is not None and spec.loader is not None:
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise OptionError(
        f"it is read by TensorFlow Model Analysis, which is not installed; {install_hint('tfma')}"
    )


def parsed(text: str) -> Any:
    """Return the EvalConfig that a text or JSON says.

    Raises
    ------
    OptionError
        TFMA is not installed, or the text is no EvalConfig.
    """
    from google.protobuf import json_format, text_format

    message = _messages().EvalConfig()
    try:
        if text.lstrip().startswith("{"):
            content = json.loads(text)
            # As TFMA writes it beside its results.
            content = content.get("evalConfig", content.get("eval_config", content))
            json_format.ParseDict(content, message)
        else:
            text_format.Parse(text, message)
    except (ValueError, json_format.ParseError, text_format.ParseError) as error:
        reason = " ".join(str(error).split())
        raise OptionError(
            f"it is no EvalConfig ({reason}){_nearest_field(message, reason)}"
        ) from error
    return message


def _nearest_field(message: Any, reason: str) -> str:
    found = _NO_FIELD.search(reason)
    if found is None:
        return ""
    pool = message.DESCRIPTOR.file.pool
    try:
        fields = [one.name for one in pool.FindMessageTypeByName(found[1]).fields]
    except KeyError:
        return ""
    return f"{nearest_hint(found[2], fields)} fields: {', '.join(fields)}"

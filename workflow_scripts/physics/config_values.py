"""Values of a model's `config.json`, checked when they are read: one message names the key that is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from workflow_scripts.common.faults import InputError

# Far more than any model has; counting more layers would take too long.
MOST_LAYERS = 10_000


class ModelFactsError(InputError):
    """A config.json that cannot be used; the message says what is wrong and what is supported."""


class ConfigValues:
    """The values of one config. A key that is null counts as missing, as in transformers. Methods raise ModelFactsError
    for a value that is missing or of another kind."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.model_type = str(values.get("model_type"))

    def get(self, key: str, default: Any = None) -> Any:
        value = self._values.get(key)
        return default if value is None else value

    def given(self) -> dict[str, Any]:
        return {key: value for key, value in self._values.items() if value is not None}

    def with_usual_keys(self, own_of: Mapping[str, str]) -> "ConfigValues":
        """The values of a family's own keys also under the usual ones, where these are missing."""
        values = self.given()
        return ConfigValues({usual: values[own] for usual, own in own_of.items() if own in values} | values)

    def fault(self, message: str) -> ModelFactsError:
        return ModelFactsError(f"{self.model_type}: {message}")

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.get(key, default)
        if value is None:
            raise self.fault(f"missing {key!r}")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fault(f"{key} must be a whole number {'above 0' if least else 'of at least 0'}, not {value!r}")
        if key == "num_hidden_layers" and value > MOST_LAYERS:
            raise self.fault(f"{key} must be at most {MOST_LAYERS}, not {value}")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) is None else self.size(key)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.fault(f"{key} must be true or false, not {value!r}")
        return value

    def choice(self, key: str, default: Any, allowed: Sequence[str]) -> Any:
        value = self.get(key, default)
        if value is not None and value not in allowed:
            raise self.fault(f"{key} must be one of {', '.join(allowed)}, not {value!r}")
        return value

    def elements(self, key: str) -> Sequence[Any]:
        """A list; empty if it is missing."""
        value = self.get(key, ())
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.fault(f"{key} must be a list, not {value!r}")
        return value

    def numbers(self, key: str, layers: int | None = None) -> Sequence[int]:
        """A list of whole numbers, with `layers` of layers, from 0; empty if it is missing."""
        values = self.elements(key)
        if strange := [value for value in values if not isinstance(value, int)]:
            raise self.fault(f"{key} must be a list of whole numbers, but has {strange[0]!r}")
        if layers is not None and (none := [value for value in values if not 0 <= value < layers]):
            raise self.fault(f"{key} names layer {none[0]}; there are layers 0 to {layers - 1}")
        return values

    def part(self, key: str) -> "ConfigValues":
        """A config inside this one, such as `text_config`."""
        value = self._values.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(f"{key} must be a mapping of keys to values, not {value!r}")
        return ConfigValues({"model_type": f"{self.model_type}.{key}", **value})

    def divided(self, key: str, by: str, sizes: tuple[int, int]) -> int:
        """The quotient of two sizes, of which the second must divide the first."""
        size, divisor = sizes
        if size % divisor:
            raise self.fault(f"{by} {divisor} must divide {key} {size}")
        return size // divisor

    def layer_kinds(self, key: str, layers: int, default: Sequence[str], allowed: Sequence[str]) -> Sequence[str]:
        kinds = self.get(key, default)
        if not isinstance(kinds, Sequence) or isinstance(kinds, str) or len(kinds) != layers:
            raise self.fault(f"{key} must be a list with one element for each of {layers} layers")
        if unknown := sorted({str(kind) for kind in kinds} - set(allowed)):
            raise self.fault(f"{key} names {unknown[0]!r}, which is not supported; supported: {', '.join(allowed)}")
        return kinds

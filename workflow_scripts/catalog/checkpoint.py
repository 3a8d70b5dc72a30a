"""Files of a model's folder beside its config: the tokenizer and the weights, with a hash of their content."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from workflow_scripts.common.faults import InputError
from workflow_scripts.common.files import read_json, sha256_of
from workflow_scripts.common.records import Record

# What ModelOpt says of its quantization; newer versions say it in config.json too.
QUANTIZATION_FILE = "hf_quant_config.json"
CONFIG_FILES = ("config.json", "generation_config.json", QUANTIZATION_FILE)
TOKENIZER_FILES = (
    *("tokenizer*", "vocab.*", "merges.txt", "*.model"),
    *("*.tiktoken", "added_tokens.json", "special_tokens_map.json", "chat_template*"),
)
# One of them is a tokenizer; the others only add to it.
_TOKENIZERS = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken")
# In order of preference; a folder often holds the same weights in several formats.
WEIGHT_FILES = (("*.safetensors", "*.safetensors.index.json"), ("*.bin", "*.bin.index.json"))
HASHES = "files.json"  # record of the hashed files
# Where configs state how many layers draft; and the families for which vLLM has a number of its own.
_DRAFTING_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_DRAFT_BY_FAMILY = ("longcat_flash", "step3p", "mimo_v2", "minimax_m3", "dots3_note")
WEIGHT_FORMATS = ", ".join(pattern for pattern, _ in WEIGHT_FILES)


class HashedFile(Record):
    """A file as it was when its content was hashed."""

    size: int
    changed_ns: int
    sha256: str


class HashedFiles(Record):
    """The files of a folder that an engine loads, by name."""

    files: dict[str, HashedFile]

    @property
    def sha256(self) -> str:
        """SHA-256 of names and contents."""
        content = "".join(f"{file.sha256}  {name}\n" for name, file in sorted(self.files.items()))
        return hashlib.sha256(content.encode()).hexdigest()


def read_config_json(path: Path, fault: type[InputError]) -> dict[str, Any]:
    """The values of a `config.json`, which may hold Infinity, with the quantization in a file beside it. Raises `fault`
    if one of them cannot be read."""
    try:
        config, beside = read_json(path, infinite=True), path.with_name(QUANTIZATION_FILE)
        if not isinstance(config, dict):
            raise InputError(f"{path}: must hold one JSON object")
        if not config.get("quantization_config") and beside.is_file():
            stated = read_json(beside)
            stated = stated.get("quantization") if isinstance(stated, dict) else None
            if not isinstance(stated, dict):
                raise InputError(f"{beside}: must hold an object with the key quantization")
            config["quantization_config"] = {"quant_method": "modelopt", **stated}
        return config
    except OSError as e:
        raise fault(f"{path}: {e.strerror}") from None
    except InputError as e:
        raise fault(str(e)) from None


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of the folder's tokenizer; none if it has no vocabulary."""
    return _matching(folder, TOKENIZER_FILES) if _matching(folder, _TOKENIZERS) else []


def weight_files(folder: Path) -> list[Path]:
    return next(filter(None, (_matching(folder, patterns) for patterns in WEIGHT_FILES)), [])


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def hashed(paths: Iterable[Path], known: HashedFiles | None) -> HashedFiles:
    """The files with the hashes of their contents; a file of the size and time that are `known` is not read again."""
    files = {}
    for path in paths:
        size, changed_ns = path.stat().st_size, path.stat().st_mtime_ns
        file = known.files.get(path.name) if known else None
        if file is None or (file.size, file.changed_ns) != (size, changed_ns):
            file = HashedFile(size=size, changed_ns=changed_ns, sha256=_sha256(path, size, changed_ns))
        files[path.name] = file
    return HashedFiles(files=files)


@cache
def _sha256(path: Path, size: int, changed_ns: int) -> str:
    """The hash of a file's content, read once per process for each size and time of change."""
    return sha256_of(path)


def drafting_layers(config: Mapping[str, Any]) -> int:
    """How many layers draft (multi-token prediction), as the config says or as vLLM 0.32 assumes of its family
    (`hf_config_override` in vllm/config/speculative.py).

    >>> drafting_layers({"model_type": "mimo", "num_nextn_predict_layers": 1}), drafting_layers({"model_type": "llama"})
    (1, 0)
    """
    parts = (config, config.get("text_config"), config.get("mtp_config"))
    named = [part.get(key) for part in parts if isinstance(part, Mapping) for key in _DRAFTING_LAYERS]
    of_family = str(config.get("model_type")).startswith(_DRAFT_BY_FAMILY)
    return max([int(of_family), *(count for count in named if isinstance(count, int))])

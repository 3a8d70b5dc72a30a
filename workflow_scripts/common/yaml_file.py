"""How YAML files are read: a key may not occur twice, and a file that cannot be read is one fault."""

from pathlib import Path
from typing import Any

import yaml

from workflow_scripts.common.faults import InputError


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses duplicate keys in a mapping; YAML itself would silently take the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"key {key.value!r} occurs twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


def read_yaml(path: Path, fault: type[InputError]) -> Any:
    """The content of a YAML file. Raises `fault` if the file cannot be opened, is not YAML, or has a key twice."""
    try:
        return _UniqueKeys(path.read_text(encoding="utf-8")).get_single_data()
    except OSError as e:
        raise fault(f"{path}: {e.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # PyYAML raises ValueError for an invalid date
        words = " ".join(str(e).split()).replace('in "<unicode string>", line', "in line")
        raise fault(f"{path}: not readable as YAML: {words}") from None

"""Facts of processors, from what Linux reports: two virtual machines, and one that reports little."""

from workflow_scripts.common.files import write_text
from workflow_scripts.device.processor import last_level_cache_bytes, processor_facts


def cpuinfo(core: int, vendor: str, family: int, model: int, name: str, flags: str) -> str:
    """The lines of a core that matter; flags that decide nothing are left out but for a few."""
    fields = {"processor": core, "vendor_id": vendor, "cpu family": family, "model": model, "model name": name}
    return "".join(f"{key}\t: {value}\n" for key, value in (fields | {"flags": f"fpu sse2 avx {flags}"}).items())


ZEN5_FLAGS = "f16c avx2 avx512f avx512dq avx512vl avx_vnni avx512_bf16 avx512_vnni avx512_vp2intersect"
ZEN5 = ("AuthenticAMD", 26, 2, "AMD EPYC", ZEN5_FLAGS)
XEON_FLAGS = "f16c avx2 avx512f avx512_vnni avx_vnni avx512_bf16 amx_bf16 avx512_fp16 amx_tile amx_int8"
SAPPHIRE_RAPIDS = ("GenuineIntel", 6, 143, "Intel(R) Xeon(R) Processor @ 2.70GHz", XEON_FLAGS)
ROME = ("AuthenticAMD", 23, 49, "AMD EPYC 7B12", "f16c avx2 sha_ni clzero")


class Host:
    """Linux's files of a processor with two hyperthreads or cores; `caches` are level, type, size and who shares it."""

    def __init__(self, folder, processor, caches):
        self.cpuinfo, self.cpus = folder / "cpuinfo", folder / "cpu"
        write_text(self.cpuinfo, "\n".join(cpuinfo(core, *processor) for core in (0, 1)))
        for index, (level, kind, size, shared) in enumerate(caches):
            for core, text in shared.items():
                for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", text)):
                    write_text(self.cpus / f"cpu{core}/cache/index{index}/{name}", f"{value}\n")

    def facts(self, *cores):
        return processor_facts(cores, self.cpuinfo, self.cpus)


def test_a_zen_5_with_a_core_each(tmp_path):
    own = {0: "0", 1: "1"}
    caches = [
        (1, "Data", "48K", own),
        (1, "Instruction", "32K", own),
        (2, "Unified", "1024K", own),
        (3, "Unified", "32768K", {0: "0-1", 1: "0-1"}),
    ]
    host = Host(tmp_path, ZEN5, caches)
    assert host.facts(0, 1) == {
        "name": "AMD EPYC",
        "processor": "AMD EPYC (AuthenticAMD 26-2): avx2 avx512f avx512_vnni avx512_bf16",
        "instruction_sets": ["avx2", "avx512f", "avx512_vnni", "avx512_bf16"],
        "native_dtypes": ["float32", "bfloat16"],
        "caches": [
            {"level": 1, "size_bytes": 48 * 2**10, "cpus": 1, "instances": 2},
            {"level": 2, "size_bytes": 2**20, "cpus": 1, "instances": 2},
            {"level": 3, "size_bytes": 2**25, "cpus": 2, "instances": 1},
        ],
    }
    assert host.facts(1)["caches"][1]["instances"] == 1
    assert host.facts(1)["processor"] == host.facts(0, 1)["processor"]  # devices of one host are compared


def test_two_hyperthreads_of_a_sapphire_rapids_are_one_core_with_all_types(tmp_path):
    both = {0: "0-1", 1: "0-1"}
    caches = [(1, "Data", "48K", both), (2, "Unified", "2048K", both), (3, "Unified", "480M", both)]
    host = Host(tmp_path, SAPPHIRE_RAPIDS, caches)
    facts = host.facts(0, 1)
    assert facts["native_dtypes"] == ["float32", "bfloat16", "float16"]
    assert facts["instruction_sets"][-3:] == ["amx_tile", "amx_int8", "amx_bf16"]
    assert last_level_cache_bytes(facts) == 480 * 2**20


def test_an_avx2_epyc_has_float32_alone_and_a_cache_in_each_complex(tmp_path):
    host = Host(tmp_path, ROME, [(3, "Unified", "16384K", {0: "0", 1: "1"})])
    facts = host.facts(0, 1)
    assert (facts["instruction_sets"], facts["native_dtypes"]) == (["avx2"], ["float32"])
    assert last_level_cache_bytes(facts) == 2 * 2**24
    assert last_level_cache_bytes(host.facts(1)) == 2**24
    assert facts["processor"] != processor_facts([0])["processor"]


def test_a_system_that_tells_nothing(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nBogoMIPS\t: 50.00\n")
    facts = processor_facts([0], tmp_path / "cpuinfo", tmp_path)
    assert (facts["native_dtypes"], facts["caches"]) == (["float32"], [])
    assert facts["name"]
    assert last_level_cache_bytes(facts) is None

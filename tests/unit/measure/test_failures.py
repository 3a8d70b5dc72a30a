"""Failures because an engine cannot do something are distinguished from faults."""

from pathlib import Path

import pytest

from workflow_scripts.engines.engine import CacheHeldError
from workflow_scripts.engines.registry import get_engine
from workflow_scripts.measure import failures
from workflow_scripts.measure.failures import request_failures, run_failure

GENERIC = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
CORE = "(EngineCore pid=7) ERROR 11-21 07:50:55 [core.py:1100] "


def start_failure(error: Exception, log: Path, engine: str = "vllm") -> failures.Failure | None:
    return failures.start_failure(error, log, get_engine(engine).refusals)


class EngineDeadError(Exception):
    """Named as vLLM's own."""


def log_of(tmp_path: Path, *lines: str) -> Path:
    log = tmp_path / "engine.log"
    log.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return log


def traceback(message: str, prefix: str = "") -> list[str]:
    return [prefix + "Traceback (most recent call last):", prefix + '  File "core.py", line 1, in f', prefix + message]


@pytest.mark.parametrize(
    "message",
    [
        "ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)]).",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "NotImplementedError: FP8 KV cache is not for this device",
    ],
)
def test_a_refusal_is_infeasible_in_the_engines_own_words(tmp_path, message):
    in_process = start_failure(ValueError("other"), log_of(tmp_path, *traceback(message)))
    assert in_process == ("infeasible", message)
    # With the engine in a process of its own only its log has the cause.
    lines = [*traceback(message, CORE), *traceback(GENERIC)]
    assert start_failure(RuntimeError(GENERIC), log_of(tmp_path, *lines)) == ("infeasible", message)


MESSAGES = {
    "infeasible": [
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'cpu_gemm_wna16'",
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: No requests can be scheduled and no requests can be offloaded.",
        "RuntimeError: _C::static_scaled_fp8_quant() expected at most 0 argument(s) but received 4 argument(s).",
        "RuntimeError: could not create a primitive descriptor for the matmul primitive. Run workload with",
        # Of a type, an instruction set, a shape, a device: as vLLM's and torch's kernels say it.
        "RuntimeError: int8_scaled_mm_with_quant: expect A to be bfloat16 or half.",
        "RuntimeError: Unsupported data type for TileGemm224",
        "NotImplementedError: \"addmm_impl_cpu_\" not implemented for 'Float8_e4m3fn'",
        "RuntimeError: Marlin W8A8 is not supported.",
        "RuntimeError: FP8 KV cache is only supported on x86 (AMX_FP8/AMX/VEC) ISA",
        "RuntimeError: Unsupported CPU attention configuration: head_dim=72",
        "RuntimeError: decode: expect head_dim to be multiples of 32.",
        "RuntimeError: Expected OC % 16 == 0 to be true, but got false.  (Could this error message be improved?",
        "RuntimeError: skip_weighted is only supported for topk=1 on CPU",
    ],
    "engine_error": [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "RuntimeError: expected scalar type BFloat16 but found Float",
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
        "RuntimeError: The size of tensor a (32) must match the size of tensor b (16) at non-singleton dimension 1",
        "RuntimeError: Expected a.scalar_type() == b.scalar_type() to be true, but got false.",
        "RuntimeError: CUDA error: operation not supported",
        "AssertionError: the dtype must be float32",
    ],
}


@pytest.mark.parametrize(("verdict", "message"), [(kind, text) for kind in MESSAGES for text in MESSAGES[kind]])
def test_what_the_engine_cannot_do_is_infeasible_whenever_it_is_told_and_a_fault_is_not(tmp_path, verdict, message):
    log = log_of(tmp_path, *traceback(message))
    assert start_failure(RuntimeError("x"), log) == (verdict, message)
    assert run_failure(RuntimeError("x"), log) == (verdict, message)
    words = f"1 of 2 requests failed; the first: HTTP status 500; the log says: {message}"
    assert request_failures([None, "HTTP status 500"], log) == (verdict, words)
    assert request_failures(["HTTP status 500"], tmp_path / "none")[0] == "engine_error"


def test_where_the_cause_of_a_failure_is_read(tmp_path):
    assert start_failure(ValueError("no such dtype"), tmp_path / "none") == ("infeasible", "ValueError: no such dtype")
    assert start_failure(ValueError("odd"), tmp_path / "none") == ("engine_error", "ValueError: odd")
    assert start_failure(KeyError("x"), log_of(tmp_path)) == ("engine_error", "KeyError: 'x'")
    cause = "torch.OutOfMemoryError: CUDA out of memory."
    dead = EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
    assert run_failure(dead, log_of(tmp_path, *traceback(cause, CORE))) == ("engine_error", cause)
    assert run_failure(RuntimeError("odd"), log_of(tmp_path)) == ("engine_error", "RuntimeError: odd")
    assert run_failure(CacheHeldError("blocks are held"), log_of(tmp_path)) == ("invalid", "blocks are held")
    # An engine that is gone without a word is no outcome.
    lines = traceback(f"vllm.v1.engine.exceptions.EngineDeadError: {dead}")
    assert run_failure(dead, log_of(tmp_path, *lines)) is None
    # Nor is the end of a killed process that looks at the model's class a refusal.
    refused = ValueError("Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs.")
    died = "subprocess.CalledProcessError: Command '['python', '-m', 'registry']' died with <Signals.SIGKILL: 9>."
    assert start_failure(refused, log_of(tmp_path, "no model of this name")) == ("infeasible", f"ValueError: {refused}")
    assert start_failure(refused, log_of(tmp_path, *traceback(died))) is None


@pytest.mark.parametrize("exit_code", [-9, -15])
def test_a_rank_that_is_gone_without_a_word_is_no_outcome(tmp_path, exit_code):
    died = f"Worker proc VllmWorker-1 died unexpectedly (exit code: {exit_code}), shutting down executor."
    lines = [CORE + died, *traceback("RuntimeError: Executor failed.")]
    assert run_failure(RuntimeError("Executor failed."), log_of(tmp_path, *lines)) is None
    # One that said why has an outcome.
    cause = "torch.OutOfMemoryError: CUDA out of memory."
    log = log_of(tmp_path, *traceback(cause, "(Worker_TP1 pid=9) ERROR 11-21 07:50:55 [mp.py:9] "), *lines)
    assert run_failure(RuntimeError("Executor failed."), log) == ("engine_error", cause)


# What engines say of their installation and host, seen by removing packages and files, is never a refusal of a setting.
OF_ENGINES = {
    "engine_error": {
        "hf-static": [
            "ValueError: Using a `device_map` or setting `torch.set_default_device(device)` requires `accelerate`. You"
            " can install it with `pip install accelerate`",
            "ImportError: Using `low_cpu_mem_usage=True` requires Accelerate: `pip install accelerate`",
            "ModuleNotFoundError: No module named 'accelerate'",
            "OSError: model does not appear to have a file named config.json",
        ],
        "vllm": [
            "ValueError: bitsandbytes is not installed. It must be installed for this quantization",
            "FileNotFoundError: [Errno 2] No such file or directory: 'config.json'",
        ],
        "vllm-serve": ["OSError: [Errno 98] Address already in use"],
    },
    "infeasible": {
        "vllm": [
            "ValueError: Block size must be a multiple of 16, but got 8",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig",
            "ValueError: To serve at least one request with the models's max seq len (4096), (1.0 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.5 GiB).",
            "ValueError: vLLM 0.11.0 does not have attention_backend",
            "ValueError: The quantization method awq is not supported for the current GPU.",
        ],
        "hf-continuous": ["ValueError: max_batch_tokens must be greater than 0"],
    },
}


@pytest.mark.parametrize(
    ("verdict", "engine", "message"),
    [(kind, engine, text) for kind, of in OF_ENGINES.items() for engine, texts in of.items() for text in texts],
)
def test_a_refusal_is_told_by_the_engines_own_list_and_a_fault_of_the_installation_is_none(
    tmp_path, verdict, engine, message
):
    assert start_failure(ValueError("x"), log_of(tmp_path, *traceback(message)), engine)[0] == verdict

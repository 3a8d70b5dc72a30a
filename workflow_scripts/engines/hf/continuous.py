"""HuggingFace continuous batching: `transformers`' own scheduler over a paged cache, as `generate_batch` uses it."""

import time
from collections.abc import Sequence
from typing import Any

from workflow_scripts.engines.engine import Effective, RequestRecord
from workflow_scripts.engines.hf.model import HfEngine, generation_arguments, load_hf_model, seed_the_pass
from workflow_scripts.engines.hf.predictions import why_model_is_refused
from workflow_scripts.workloads.request import Request

RESULT_TIMEOUT_S = 1.0


class HfContinuous(HfEngine):
    """The manager behind `generate_batch`, called directly because only it accepts an output length per request."""

    _pass = 0

    def start(self) -> Effective:
        """Load the model and allocate the paged cache. Raises NotImplementedError if the cache cannot hold what the
        model's layers keep. transformers itself would fail at the first request."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        if refused := why_model_is_refused(self._setup.model_dir):
            raise NotImplementedError(refused)
        self._model = load_hf_model(self._setup)
        self._manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(
                eos_token_id=-1, pad_token_id=0, max_new_tokens=1, **generation_arguments(self._setup.sampling)
            ),
            # With blocks shared between requests a repeat would measure the cache of the previous one.
            continuous_batching_config=ContinuousBatchingConfig(allow_block_sharing=False, **self._setup.knobs),
        )
        self._note_steps()
        self._manager.start()
        cache = self._cache()
        return {
            "kv_cache_bytes": cache.cache_tensor.nbytes,
            "block_size": max(allocator.tokens_per_page for allocator in cache.cache_allocators.values()),
            "num_gpu_blocks": cache.num_blocks,
            "max_num_batched_tokens": cache.max_batch_tokens,
            "enable_prefix_caching": cache.use_prefix_sharing,
            "attention_backend": self._model.config._attn_implementation,
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        self._pass += 1
        seed_the_pass(self._setup.sampling)
        for r in requests:
            self._manager.add_request(
                r.prompt_token_ids,
                request_id=f"{self._pass}/{r.request_id}",
                max_new_tokens=r.output_tokens,
                record_timestamps=True,
            )
        done: dict[str, Any] = {}
        while len(done) < len(requests):
            result = self._manager.get_result(timeout=RESULT_TIMEOUT_S)
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(f"request {result.request_id} failed: {result.error}")
                done[result.request_id.partition("/")[2]] = result
            elif result is None and not self._manager.is_running():
                raise RuntimeError("the generation thread of transformers ended before all requests were done")
        return [_record(r, done[r.request_id], self._setup.keep_answers) for r in requests]

    def _cache(self) -> Any:
        while self._manager.batch_processor is None:
            if not self._manager.is_running():
                raise RuntimeError("the generation thread of transformers ended before it had a cache")
            time.sleep(0.01)
        return self._manager.batch_processor.cache

    def _note_steps(self) -> None:
        """Record what the scheduler holds and how much of the cache is allocated at the end of each step. Requests get
        the blocks for a step before it. The blocks of requests that end are freed after the recording."""
        step = self._manager._generation_step

        def noted() -> None:
            step()
            processor = self._manager.batch_processor
            pool, scheduler = processor.cache.pool, processor.scheduler
            running = list(scheduler.active_requests.values())
            self._steps.append(
                {
                    "time_s": time.monotonic(),
                    "running": len(running),
                    "waiting": len(scheduler.waiting_requests),
                    "kv_cache_usage": 1 - pool.num_free_sectors / pool.num_sectors,
                    "kv_tokens_live": sum(state.current_len() for state in running),
                }
            )

        self._manager._generation_step = noted

    def stop(self) -> None:
        self._manager.stop(block=True, timeout=5)


def _record(request: Request, result: Any, keep_answer: bool) -> RequestRecord:
    # The manager's times are of the performance counter, which on Linux is the monotonic clock.
    scheduled_s, finished_s = result.lifespan
    stamps_s = result.timestamps or []
    return RequestRecord(
        request_id=request.request_id,
        prompt_tokens=len(request.prompt_token_ids),
        output_tokens=len(result.generated_tokens),
        queued_s=result.created_time,
        scheduled_s=scheduled_s,
        first_token_s=stamps_s[0] if stamps_s else None,
        last_token_s=stamps_s[-1] if stamps_s else finished_s,
        token_ids=list(result.generated_tokens) if keep_answer else None,
    )

"""HuggingFace `generate()` on static batches: left-padded, with masks; the batch waits for its longest request."""

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from workflow_scripts.engines.engine import Effective, RequestRecord
from workflow_scripts.engines.hf.model import HfEngine, generation_arguments, load_hf_model, seed_the_pass
from workflow_scripts.engines.knobs import ENGINE_ARGS
from workflow_scripts.workloads.request import Request


class HfStatic(HfEngine):
    """`generate()` with DynamicCache (grows) or StaticCache (allocated for the batch's full length at once)."""

    def start(self) -> Effective:
        from transformers import GenerationConfig

        self._batch_size = int(self._setup.knobs["batch_size"])
        self._grows = self._setup.knobs["cache_implementation"] == "dynamic"
        self._model = load_hf_model(self._setup)
        # A model's own configuration may end sequences early, and penalize or suppress tokens in each step; vLLM is
        # not asked to do this either.
        self._model.generation_config = GenerationConfig()
        return {
            "batch_size": self._batch_size,
            "cache_implementation": self._setup.knobs["cache_implementation"],
            "attention_backend": self._model.config._attn_implementation,
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def run(self, requests: Sequence[Request]) -> list[RequestRecord]:
        seed_the_pass(self._setup.sampling)
        queued_s = time.monotonic()
        starts = range(0, len(requests), self._batch_size)
        batches = (requests[start : start + self._batch_size] for start in starts)
        return [record for batch in batches for record in self._batch(batch, queued_s)]

    def _batch(self, batch: Sequence[Request], queued_s: float) -> list[RequestRecord]:
        import torch
        from transformers import DynamicCache, StaticCache, StoppingCriteriaList

        device = self._model.device
        longest_prompt = max(len(r.prompt_token_ids) for r in batch)
        longest_output = max(r.output_tokens for r in batch)
        pads = [longest_prompt - len(r.prompt_token_ids) for r in batch]
        ids = torch.tensor([[0] * pad + r.prompt_token_ids for pad, r in zip(pads, batch, strict=True)], device=device)
        mask = torch.tensor([[0] * pad + [1] * (longest_prompt - pad) for pad in pads], device=device)
        longest = longest_prompt + longest_output
        config = self._model.config
        cache = DynamicCache(config=config) if self._grows else StaticCache(config=config, max_cache_len=longest)
        slots: list[list[int]] = []  # of each row, in a layer of each kind, after each step
        times_s: list[float] = []

        def note_step(*_: Any, **__: Any) -> Any:
            if device.type == "cuda":
                torch.cuda.synchronize()  # a token counts when the device has computed it, not when it was launched
            times_s.append(time.monotonic())
            slots.append([layers[0].keys.shape[-2] for layers in _by_kind(cache)])
            return torch.zeros(len(batch), dtype=torch.bool, device=device)

        scheduled_s = time.monotonic()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                **generation_arguments(self._setup.sampling),
                max_new_tokens=longest_output,
                min_new_tokens=longest_output,
                pad_token_id=0,
                past_key_values=cache,
                disable_compile=True,
                stopping_criteria=StoppingCriteriaList([note_step]),
                **(self._setup.knobs.get(ENGINE_ARGS) or {}),
            )
        generated = output.shape[1] - longest_prompt
        if generated != longest_output:
            raise RuntimeError(
                f"generate() made {generated} tokens for each row of a batch, asked for {longest_output}"
            )
        # The code of some families computes more than the one new token of each row, without an error.
        held = max((layer.keys.shape[-2] for layer in cache.layers if hasattr(layer, "keys")), default=0)
        if held > longest:
            raise RuntimeError(f"the cache holds {held} tokens of rows of {longest_prompt} + {longest_output} tokens")
        self._note_steps(batch, times_s, slots, cache)
        rows = output[:, longest_prompt:].tolist() if self._setup.keep_answers else None
        return [
            RequestRecord(
                request_id=r.request_id,
                prompt_tokens=len(r.prompt_token_ids),
                output_tokens=r.output_tokens,
                queued_s=queued_s,
                scheduled_s=scheduled_s,
                first_token_s=times_s[0],
                last_token_s=times_s[r.output_tokens - 1],
                token_ids=rows[row][: r.output_tokens] if rows else None,
            )
            for row, r in enumerate(batch)
        ]

    def _note_steps(self, batch: Sequence[Request], times_s: list[float], slots: list[list[int]], cache: Any) -> None:
        sizes = [sum(layer.keys.nbytes + layer.values.nbytes for layer in layers) for layers in _by_kind(cache)]
        per_slot = [size / last for size, last in zip(sizes, slots[-1], strict=True)]
        states = sum(
            state.nbytes
            for layer in cache.layers
            for name in ("conv_states", "recurrent_states")
            for state in getattr(layer, name, {}).values()
            if state is not None
        )
        for step, (made_s, in_layers) in enumerate(zip(times_s, slots, strict=True), start=1):
            # A row that has all its tokens is computed until the batch ends, although nobody needs the result.
            live = [r for r in batch if step <= r.output_tokens]
            reserved = states + sum(count * size for count, size in zip(in_layers, per_slot, strict=True))
            self._steps.append(
                {
                    "time_s": made_s,
                    "running": len(live),
                    "generation_tokens": len(live),
                    # The token made in a step enters the cache in the next one.
                    "kv_tokens_live": sum(len(r.prompt_token_ids) + step - 1 for r in live),
                    # In the layers that keep the most tokens; those with a window keep fewer, those with a state none.
                    "kv_slots_reserved": max(in_layers, default=0) * len(batch),
                    "kv_bytes_reserved": round(reserved),
                }
            )


def _by_kind(cache: Any) -> list[list[Any]]:
    """The layers with keys and values, by what they hold: all tokens, or a window."""
    kinds = defaultdict(list)
    for layer in cache.layers:
        if hasattr(layer, "keys"):
            kinds[type(layer)].append(layer)
    return list(kinds.values())

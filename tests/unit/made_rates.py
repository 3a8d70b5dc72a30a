"""Rates of a device made up for tests, as its record holds them."""

from typing import Any

from workflow_scripts.device.device_record import DeviceRates


def rates_record(
    bytes_per_s: float = 10e9, flop_per_s: float = 100e9, dtype: str = "fp32", **changes: Any
) -> dict[str, Any]:
    rates = {"copy_bytes_per_s": bytes_per_s, "read_bytes_per_s": bytes_per_s, "matmul_flop_per_s": {dtype: flop_per_s}}
    how = {"last_level_cache_bytes": None, "device": {}, "threads": 2, "host": "h"}
    when = {"measured_at": "2026-01-01T00:00:00Z", "host_load": {"cpu_others_pct": 0.0}}
    return {"gpu": "cpu-all", **rates, **how, **when} | changes


def made_rates(*rates: Any, **changes: Any) -> DeviceRates:
    return DeviceRates.model_validate(rates_record(*rates, **changes))

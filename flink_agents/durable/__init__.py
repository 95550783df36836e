"""The durable state of calls, without Flink: identity, slots, record and replay, and the store behind them."""

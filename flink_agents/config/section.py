"""What every mapping of the job YAML is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A mapping of the job YAML."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)

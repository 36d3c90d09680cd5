"""The base of all sections of the coordinator's settings."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

"""The base of all sections of the coordinator's settings, and the types that they share."""

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

LIVE: Final[Any] = Field(json_schema_extra={"live": True})
"""The mark of a setting that a running coordinator takes without a new start (training/live_settings.py):
`Annotated[int, LIVE, Field(...)]`. The JSON schema has it, and so has the table of the documentation."""


def is_live(field: FieldInfo) -> bool:
    """Tell whether a setting has that mark."""
    return field.json_schema_extra == {"live": True}


def frozen_list(value: object) -> object:
    """Return a list as a tuple: TOML and variables give lists, sections are frozen."""
    return tuple(value) if isinstance(value, list) else value


Texts = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=400)], ...], BeforeValidator(frozen_list)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """Base of all sections: frozen, strict about types, no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

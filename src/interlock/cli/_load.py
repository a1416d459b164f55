"""Loads the app that `MODULE:APP` names, or says in one line why it cannot."""

import importlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.cli._errors import WrongUsageError
from interlock.contracts.errors import InterlockError, MisconfiguredError

if TYPE_CHECKING:
    from interlock.app import Interlock


def split_target(target: str) -> tuple[str, str]:
    """The module's name and the app's. Raises WrongUsageError when it names no two."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise WrongUsageError(f"{target!r} names no app. Write MODULE:APP, such as support:app for app in support.py.")
    if module.startswith("."):
        raise WrongUsageError(f"{module!r} is no module's name. Write it in full, such as agents.support:app.")
    if module.endswith(".py") or "/" in module:
        right = module.removesuffix(".py").strip("./").replace("/", ".")
        raise WrongUsageError(f"{module!r} is a file. Give the module's name: {right}:{name}")
    return module, name


def load_app(target: str) -> "Interlock":
    """Import the module, with the current folder on the path, and return its app."""
    from interlock.app import Interlock

    module_name, name = split_target(target)
    module = _import(module_name)
    app = getattr(module, name, None)
    if isinstance(app, Interlock):
        return app
    what = f"is of type {type(app).__name__}, not an Interlock" if hasattr(module, name) else "is not there"
    apps = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Interlock)]
    there_is = f"It has {', '.join(apps)}." if apps else "It has no app. Make one: app = Interlock(agents=[...])."
    raise WrongUsageError(f"{name!r} of module {module_name!r} {what}. {there_is}")


def _import(name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise WrongUsageError(
                f"There is no module {name!r}, neither in the current folder {folder} nor installed."
            ) from error
        raise _broken(name, folder, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, folder, error) from error


def _broken(name: str, folder: str, error: BaseException) -> MisconfiguredError:
    # Our own messages say it all; they stay the error's cause, which is shown after this one.
    if isinstance(error, InterlockError):
        return MisconfiguredError(f"Module {name!r} does not load{_where(folder, error)}.")
    todo = f"The current folder is {folder}."
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        todo += f" Install what brings {package!r} for {sys.executable}, or add the folder it is in to PYTHONPATH."
    return MisconfiguredError(
        f"Module {name!r} does not load{_where(folder, error)}: {type(error).__name__}: {error}. {todo}"
    )


def _where(folder: str, error: BaseException) -> str:
    """The last line of the user's own code that the error passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if Path(one.filename).is_relative_to(folder) and "site-packages" not in one.filename]
    return f" ({Path(own[-1].filename).relative_to(folder)}, line {own[-1].lineno})" if own else ""

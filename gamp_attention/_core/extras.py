"""Optional packages: one message that names all that a task lacks, before any work."""

import importlib.util

EXTRAS = {  # the extra of gamp-attention that installs a module; modules without an extra are installed by their name
    "torch": "torch",
    "matplotlib": "plot",
    "sklearn": "sklearn",
    "xarray": "sweep",
    "h5netcdf": "sweep",
    "h5py": "sweep",
}
PROJECTS = {"sklearn": "scikit-learn"}  # names of modules that differ from their project's


def missing_modules(*modules: str) -> list[str]:
    """Return the modules that are not installed, in the given order, without importing any."""
    return [name for name in dict.fromkeys(modules) if importlib.util.find_spec(name) is None]


def require_modules(purpose: str, *modules: str) -> None:
    """Raise ImportError unless all modules are installed, with all that are missing and one command that installs them.

    Parameters
    ----------
    purpose : subject of the message, for instance "minimize_risk".
    modules : names that are imported.
    """
    missing = missing_modules(*modules)
    if missing:
        raise ImportError(f"{purpose} needs {_list_projects(missing)}: {install_command(missing)}")


def install_command(modules: list[str]) -> str:
    """Return the pip command that installs modules through the extras of gamp-attention."""
    extras = sorted({EXTRAS[name] for name in modules if name in EXTRAS})
    others = [PROJECTS.get(name, name) for name in modules if name not in EXTRAS]
    words = [f"'gamp-attention[{','.join(extras)}]'"] if extras else []
    return " ".join(["pip install", *words, *others])


def _list_projects(modules: list[str]) -> str:
    names = [PROJECTS.get(name, name) for name in modules]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

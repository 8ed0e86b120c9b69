"""Optional dependencies, which extras of the package install."""

import importlib.util

# the extra of gamp-attention that installs a module; modules without an extra are installed by their name
EXTRAS = {"torch": "torch", "matplotlib": "plot", "sklearn": "sklearn"}
PROJECTS = {"sklearn": "scikit-learn"}  # names of modules that differ from their project's


def require_modules(purpose: str, *modules: str) -> None:
    """Raise ImportError unless all optional modules are installed, before any work and without importing them.

    The message begins with `purpose`, for instance "minimize_risk", and has one command that installs what is missing.
    """
    missing = [name for name in dict.fromkeys(modules) if importlib.util.find_spec(name) is None]
    if not missing:
        return
    projects = [PROJECTS.get(name, name) for name in missing]
    named = " and ".join([", ".join(projects[:-1]), projects[-1]] if len(projects) > 1 else projects)
    extras = sorted({EXTRAS[name] for name in missing if name in EXTRAS})
    words = [f"'gamp-attention[{','.join(extras)}]'"] if extras else []
    words += [project for name, project in zip(missing, projects, strict=True) if name not in EXTRAS]
    raise ImportError(f"{purpose} needs {named}: {' '.join(['pip install', *words])}")

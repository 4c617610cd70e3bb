"""Which files a tree has, for the checks of it."""
import pathlib
import subprocess


def names_in(tree):
    """Every file that is, or could be, committed. Where Git does not answer for this folder, every file in it."""
    def git(*arguments):
        return subprocess.run(["git", "-C", tree, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        if pathlib.Path(git("rev-parse", "--show-toplevel").rstrip("\n")).resolve() == tree:
            listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
            return sorted({name for name in listed if (tree / name).is_file()})
    except (OSError, subprocess.CalledProcessError):
        pass
    names = (path.relative_to(tree) for path in tree.rglob("*") if path.is_file())
    return sorted(str(name) for name in names if name.parts[0] not in ("build", ".git"))

# SPDX-License-Identifier: Apache-2.0
"""Puts libra.so.1 into the package, and the oldest glibc that has its symbols into a wheel's tag. pyproject.toml has the rest."""

import os
import re
import subprocess
import sysconfig

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

C = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "c")
LIBRARY = "libra.so.1"


class Build(build_py):
    """Compiles the library. An editable installation has none: LIBRA_LIBRARY names it."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):  # before setuptools 64 there is none
            return
        if not os.path.exists(os.path.join(C, "Makefile")):
            raise SystemExit(f"{C} is not there: build the package in a copy of Libra that has clients/c beside clients/python")
        out = os.path.abspath(self.get_finalized_command("build").build_temp)
        subprocess.run(["make", "-C", C, "O=" + out, os.path.join(out, LIBRARY), "LDFLAGS=-s"], check=True)
        self.copy_file(os.path.join(out, LIBRARY), os.path.join(self.build_lib, "libra", LIBRARY))


class Wheel(bdist_wheel):
    """Serves each Python of the platform: the library is loaded through ctypes."""

    def get_tag(self):
        return "py3", "none", platform(os.path.join(self.bdist_dir, "libra", LIBRARY))


def platform(library):
    """The platform's tag (PEP 600): names of symbol versions are in the library's table of strings."""
    machine = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    with open(library, "rb") as file:
        versions = [tuple(map(int, v)) for v in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", file.read())]
    if not versions:  # another libc
        return machine
    return "manylinux_{}_{}_".format(*max(versions)) + machine[len("linux_"):]


class Binary(Distribution):
    """A distribution of one platform."""

    def has_ext_modules(self):
        return True


setup(distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel})

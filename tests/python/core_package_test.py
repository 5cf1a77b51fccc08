# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The package as it is installed: its version, types, documentation and example."""
import ast
import doctest
import importlib.metadata
import pathlib
import pickle
import re
import unittest

from core_support import ROOT, Case, python, spillway

# What others build upon: a change here is a change for them.
SIGNATURES = {
    "TensorOptimizer.__init__": "self, parameters, optimizer, groups, *, host_bytes, nvme='', out='', chunk_bytes=0, "
                                "threads=0, isa='auto', io_backend='auto', client_settings='{}', more_nvme=(), state='fp32', "
                                "rounding_seed=0, average='off'",
    "TensorOptimizer.check_room": "parameters, optimizer, groups, *, host_bytes, nvme='', out='', chunk_bytes=0, "
                                  "more_nvme=(), state='fp32', average='off'",
    "TensorOptimizer.state_planes": "self",
    "TensorOptimizer.io_backend": "self",
    "TensorOptimizer.set_group": "self, group, hyper",
    "TensorOptimizer.rebind": "self, tensor, array",
    "TensorOptimizer.give_gradient": "self, tensor, array",
    "TensorOptimizer.give_gradients": "self, tensors, arrays",
    "TensorOptimizer.discard_gradients": "self",
    "TensorOptimizer.begin_step": "self, gradient_scale=1.0, max_norm=None, nonfinite='propagate'",
    "TensorOptimizer.begin_streamed_step": "self, gradient_scale=1.0",
    "TensorOptimizer.end_gradients": "self",
    "TensorOptimizer.wait_for": "self, tensor",
    "TensorOptimizer.wait": "self",
    "TensorOptimizer.recover": "self",
    "TensorOptimizer.commit": "self, iteration=0, client_state=''",
    "TensorOptimizer.steps": "self, tensor",
    "TensorOptimizer.set_steps": "self, tensor, steps",
    "TensorOptimizer.read_state": "self, tensor, plane, first, out",
    "TensorOptimizer.write_state": "self, tensor, plane, first, values",
    "TensorOptimizer.state_view": "self, tensor, plane",
    "TensorOptimizer.factors": "self, tensor",
    "TensorOptimizer.read_factors": "self, tensor, first, out",
    "TensorOptimizer.write_factors": "self, tensor, first, values",
    "TensorOptimizer.read_masters": "self, tensor, first, out",
    "TensorOptimizer.read_average": "self, tensor, first, out",
    "TensorOptimizer.write_average": "self, tensor, first, values",
    "TensorOptimizer.reset_residue": "self, tensor",
    "TensorOptimizer.read_residue": "self, tensor, first, out",
    "TensorOptimizer.write_residue": "self, tensor, first, values",
    "TensorOptimizer.statistics": "self",
    "StepReport.applied": "self",
    "StepReport.norm": "self",
    "StepReport.nonfinite": "self",
    "StepReport.nonfinite_tensor": "self",
    "parse_bytes": "text",
    "available_host_bytes": "",
    "nadam_momentum_product": "beta1, momentum_decay, step",
    "average_interval": "text",
    "io_backends": "",
    "isas": "",
}
INTERNAL = {"nadam_momentum_product", "average_interval"}  # for spillway.torch alone
PACKAGE = pathlib.Path(spillway.__file__).parent


def plain(arguments):
    """Without types and positional-only marks."""
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    arguments.args = arguments.posonlyargs + arguments.args
    arguments.posonlyargs = []
    return ast.unparse(arguments)


def functions(tree, prefix=""):
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node, node.name + ".")
        elif isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node


class Package(Case):
    def test_version_is_that_of_the_project(self):
        project = re.search(r"project\(spillway VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(spillway.__version__, project)
        self.assertEqual(importlib.metadata.version("spillway"), project)

    def test_types_are_those_of_the_binding(self):
        self.assertTrue((PACKAGE / "py.typed").is_file())
        tree = ast.parse((PACKAGE / "_core.pyi").read_text())
        typed = dict(functions(tree))
        found = {name: plain(node.args) for name, node in typed.items()
                 if name == "TensorOptimizer.__init__" or not name.split(".")[-1].startswith("_")}
        self.assertEqual(found, SIGNATURES)
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        self.assertEqual(classes, {"Refused", "IntegrityError", "NonfiniteGradient", "StepReport", "TensorOptimizer"})
        for name, node in typed.items():
            self.assertTrue(node.returns is not None or name.endswith("__init__"), name)

    def test_everything_is_documented(self):
        self.assertEqual(sorted(spillway.__all__), sorted(name for name in dir(spillway) if name in spillway.__all__))
        for name in SIGNATURES:
            first = name.split(".")[0]
            self.assertEqual(first in spillway.__all__, first not in INTERNAL, name)
            found = spillway._core
            for part in name.split("."):
                found = getattr(found, part)
            # The first line is the signature, which nanobind writes.
            text = found.__doc__.split("\n", 1)[-1] if "(" in found.__doc__.split("\n", 1)[0] else found.__doc__
            self.assertGreater(len(text.strip()), 20, name)
        for error in (spillway.Refused, spillway.IntegrityError, spillway.NonfiniteGradient):
            self.assertGreater(len(error.__doc__), 40)

    def test_the_example_of_the_documentation(self):
        tried = doctest.testmod(spillway)
        self.assertEqual(tried.failed, 0)
        self.assertGreater(tried.attempted, 4)

    def test_isas(self):
        found = spillway.isas()
        self.assertEqual(found[0], "scalar")
        self.assertEqual(len(set(found)), len(found))

    def test_errors_pickle(self):
        error = pickle.loads(pickle.dumps(spillway.IntegrityError("tile 3")))
        self.assertEqual((type(error), str(error)), (spillway.IntegrityError, "tile 3"))

    def test_a_missing_system_library_is_named(self):
        script = """
import importlib.abc, sys
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "spillway._core":
            raise ImportError(sys.argv[1] + ": cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, Broken())
try:
    import spillway
except ImportError as error:
    print(error)
"""
        self.assertIn("apt-get install libtbb12", python(script, "libtbb.so.12"))
        self.assertIn("apt-get install liburing2", python(script, "liburing.so.2"))
        self.assertNotIn("apt-get", python(script, "libother.so.1"))


if __name__ == "__main__":
    unittest.main()

// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "integrations/python/errors.h"

#include <exception>
#include <string>
#include <system_error>

#include <nanobind/stl/string.h>

#include "offload/errors.h"
#include "offload/plan.h"
#include "offload/state_folder.h"

namespace spillway::integrations {
namespace {

namespace nb = nanobind;

void add_error(nb::module_& module, const char* name, PyObject* base, const char* doc) {
    const std::string full = nb::cast<std::string>(module.attr("__name__")) + "." + name;
    module.attr(name) =
        nb::steal(PyErr_NewExceptionWithDoc(full.c_str(), doc, base, /*dict=*/nullptr));
}

void raise(nb::handle module, const char* name, const std::exception& error) {
    PyErr_SetString(module.attr(name).ptr(), error.what());
}

void raise_os_error(const std::system_error& error) {
    const auto& category = error.code().category();
    if (category != std::generic_category() && category != std::system_category()) {
        PyErr_SetString(PyExc_OSError, error.what());  // its value is no errno
        return;
    }
    const nb::tuple arguments = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
}

/// `module` is the Python object. What is not caught here goes to nanobind's own translator.
void translate(const std::exception_ptr& thrown, void* module_pointer) {
    const nb::handle module(static_cast<PyObject*>(module_pointer));
    try {
        std::rethrow_exception(thrown);
    } catch (const offload::PlanRefused& error) {
        raise(module, "Refused", error);
    } catch (const offload::FolderRefused& error) {
        raise(module, "Refused", error);
    } catch (const offload::IntegrityError& error) {
        raise(module, "IntegrityError", error);
    } catch (const offload::NonfiniteGradient& error) {
        raise(module, "NonfiniteGradient", error);
    } catch (const std::system_error& error) {
        raise_os_error(error);
    }
}

}  // namespace

void register_errors(nb::module_& module) {
    add_error(module, "Refused", PyExc_RuntimeError,
              "A plan or a folder that cannot be: too little memory or disk, a folder that is in "
              "use, is not empty or belongs to another run. Nothing has been changed.");
    add_error(module, "IntegrityError", PyExc_RuntimeError,
              "State that came back from the drive does not match its checksum. The text names "
              "tensor, tile, path and offset. The optimizer takes no further step; a new one "
              "resumes from the last commit.");
    add_error(
        module, "NonfiniteGradient", PyExc_ArithmeticError,
        "A gradient holds an infinity or a NaN and nonfinite=\"stop\" was asked for. The text "
        "names the tensor. Nothing has been changed.");
    nb::register_exception_translator(translate, module.ptr());
}

}  // namespace spillway::integrations

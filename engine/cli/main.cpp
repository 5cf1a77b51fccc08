// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cpu_optim/isa.h"
#include "engine/cli/console.h"
#include "engine/cli/verb_table.h"
#include "engine/cli/verbs/bench.h"
#include "engine/cli/verbs/clean.h"
#include "engine/cli/verbs/export.h"
#include "engine/cli/verbs/generate.h"
#include "engine/cli/verbs/info.h"
#include "engine/cli/verbs/inspect.h"
#include "engine/cli/verbs/plan.h"
#include "engine/cli/verbs/train.h"
#include "engine/compute/blas_kernels.h"

namespace {

using spillway::engine::Verb;

std::size_t terminal_columns() {
    winsize size{};
    return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// A stream that was closed must not become the first file that is opened; writing to it fails.
void reserve_standard_streams() {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
        if (::fcntl(stream, F_GETFD) < 0)
            static_cast<void>(::open("/dev/null", O_RDONLY));  // takes the lowest number
}

/// A write that cannot be done is an error of that write, no end of the run.
void ignore_write_signals() {
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

/// OpenBLAS chooses its kernels when it is loaded, before main(). Where they fall short of the
/// processor, the program begins anew and tells it which to take.
void start_with_fast_kernels(char** argv) {
    using namespace spillway;
    if (std::getenv(engine::blas_kernels_variable) != nullptr)
        return;
    const auto faster = engine::faster_blas_kernels(engine::blas_kernels(), cpu_optim::best_isa());
    if (!faster)
        return;
    // Started by a loader, the link names that.
    std::error_code ignored;
    if (std::filesystem::read_symlink("/proc/self/exe", ignored)
            .filename()
            .string()
            .starts_with("ld"))
        return;
    ::setenv(engine::blas_kernels_variable, faster->c_str(), 1);
    ::execv("/proc/self/exe", argv);  // returns where it cannot: slower kernels are right, too
}

}  // namespace

int main(int argc, char** argv) {
    using namespace spillway::engine;
    start_with_fast_kernels(argv);
    reserve_standard_streams();
    ignore_write_signals();
    const std::array verbs{
        Verb{"train", "trains a model under memory and time budgets", run_train},
        Verb{"generate", "samples text from a state folder or a Hugging Face folder", run_generate},
        Verb{"export", "writes a state folder's weights as a Hugging Face folder", run_export},
        Verb{"inspect", "lists a state folder and verifies every checksum", run_inspect},
        Verb{"plan", "tells what a run would take and how fast it would go", run_plan},
        Verb{"bench", "measures what this machine really gives", run_bench},
        Verb{"info", "shows what this machine has", run_info},
        Verb{"clean", "removes what dead runs left in a folder", run_clean},
    };
    Console console(std::cerr, std::cout,
                    ::isatty(STDERR_FILENO) != 0 ? HumanStream::terminal : HumanStream::plain,
                    terminal_columns());
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    return run_program(verbs, arguments, console);
}

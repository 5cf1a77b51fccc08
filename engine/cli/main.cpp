// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include <array>
#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

}  // namespace

int main(int argc, char** argv) {
    using namespace spillway::engine;
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

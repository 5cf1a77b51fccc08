// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "tests/offload/kill_at_call.h"

#include <csignal>

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spillway::testing {

std::optional<std::vector<long>> kill_before_call(std::size_t kill_at, const CallFilter& counts,
                                                  const std::function<void()>& action) {
    const pid_t child = ::fork();
    if (child == 0) {
        if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0)
            ::_exit(1);
        ::raise(SIGSTOP);
        action();
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSTOPPED(status))
        return std::nullopt;
    ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    std::vector<long> calls;
    while (true) {
        ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);  // to the entry of a call
        ::waitpid(child, &status, 0);
        if (WIFEXITED(status) || WIFSIGNALED(status))
            return calls;
        user_regs_struct registers{};
        ::ptrace(PTRACE_GETREGS, child, nullptr, &registers);
        const auto call = static_cast<long>(registers.orig_rax);
        if (counts(call)) {
            if (calls.size() == kill_at) {
                ::kill(child, SIGKILL);
                ::waitpid(child, &status, 0);
                return calls;
            }
            calls.push_back(call);
        }
        ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);  // to its end
        ::waitpid(child, &status, 0);
        if (WIFEXITED(status) || WIFSIGNALED(status))
            return calls;
    }
}

bool changes_disk(long call) {
    return is_one_of(
        call, {SYS_mkdir, SYS_mkdirat, SYS_openat, SYS_open, SYS_pwrite64, SYS_write, SYS_ftruncate,
               SYS_fallocate, SYS_fsync, SYS_fdatasync, SYS_rename, SYS_renameat, SYS_renameat2,
               SYS_unlink, SYS_unlinkat, SYS_rmdir, SYS_flock, SYS_exit_group});
}

}  // namespace spillway::testing

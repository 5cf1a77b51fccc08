// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
#include "cuda/kernel_image.h"

// The build sets SPILLWAY_KERNEL_IMAGE to the path of the compiled kernels,
// SPILLWAY_KERNEL_ARCHITECTURES to their names and SPILLWAY_KERNEL_CUDA_MAJOR to 13 for an nvcc of
// 13.x; without nvcc none of them.
#ifdef SPILLWAY_KERNEL_IMAGE
// Straight into the object file: as an array in a source it would take a compiler minutes.
asm(R"(
    .pushsection .rodata
    .balign 64
    .hidden spillway_kernel_image
    .global spillway_kernel_image
spillway_kernel_image:
    .incbin ")" SPILLWAY_KERNEL_IMAGE R"("
    .hidden spillway_kernel_image_end
    .global spillway_kernel_image_end
spillway_kernel_image_end:
    .byte 0
    .popsection
)");

extern "C" {
extern const std::byte spillway_kernel_image[];
extern const std::byte spillway_kernel_image_end[];
}
#endif

namespace spillway::cuda {

std::span<const std::byte> kernel_image() noexcept {
#ifdef SPILLWAY_KERNEL_IMAGE
    return {spillway_kernel_image, spillway_kernel_image_end};
#else
    return {};
#endif
}

std::string_view kernel_image_description() noexcept {
#ifdef SPILLWAY_KERNEL_IMAGE
    return SPILLWAY_KERNEL_ARCHITECTURES;
#else
    return "this build has no CUDA kernels: no nvcc was found when it was configured, or "
           "SPILLWAY_CUDA was off; install the CUDA toolkit and configure again, or use 'cpu'";
#endif
}

int kernel_image_cuda_major() noexcept {
#ifdef SPILLWAY_KERNEL_IMAGE
    return SPILLWAY_KERNEL_CUDA_MAJOR;
#else
    return 0;
#endif
}

}  // namespace spillway::cuda

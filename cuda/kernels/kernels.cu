// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors

// All kernels, as one module. The same sources are compiled for the host by the tests, which bring
// their own way to a block's dynamic memory.
#ifdef __CUDACC__
#define SPILLWAY_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

#include "cuda/kernels/attention.cuh"
#include "cuda/kernels/embeddings.cuh"
#include "cuda/kernels/gradients.cuh"
#include "cuda/kernels/lossy.cuh"
#include "cuda/kernels/masters.cuh"
#include "cuda/kernels/optimizer.cuh"
#include "cuda/kernels/products.cuh"
#include "cuda/kernels/rows.cuh"

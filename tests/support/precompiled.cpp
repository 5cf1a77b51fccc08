// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The Spillway authors
// Nothing of its own: the target it is in compiles the tests' common headers.

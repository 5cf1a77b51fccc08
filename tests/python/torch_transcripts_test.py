# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The Spillway authors
"""The transcripts in tests/cpu_optim/torch_transcripts.h are those of the torch that is installed.

Another processor or version may round a few operations otherwise, so that weights may differ by the bound that
tests/cpu_optim holds the kernels to; scales may not differ.
"""
import re
import struct
import sys
import unittest
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    print("SKIPPED: torch is not installed")
    sys.exit(77)

import torch_transcripts as transcripts

HEADER = (Path(__file__).parents[1] / "cpu_optim" / "torch_transcripts.h").read_text()


class Transcripts(unittest.TestCase):
    def test_weights(self):
        expected = {**transcripts.adafactor_arrays(), **transcripts.elementwise_arrays()}
        self.assertEqual(sorted(expected), sorted(re.findall(r"std::uint32_t (\w+)\[\]", HEADER)))
        for name, weights in expected.items():
            with self.subTest(name=name):
                body = re.search(rf"\b{name}\[\] = {{([^}}]*)}}", HEADER)[1]
                words = [int(word, 16) for word in re.findall(r"0x([0-9A-F]{8})u", body)]
                found = torch.tensor([struct.unpack("<f", struct.pack("<I", word))[0] for word in words])
                torch.testing.assert_close(found, weights.flatten(), rtol=1e-6, atol=1e-6)

    def test_scales(self):
        body = HEADER[HEADER.index("ScalerStep scaler[]"):]
        found = [(float.fromhex(scale), int(tracker)) for scale, tracker in re.findall(r"{(0x[^,]+), (\d+)}", body)]
        self.assertEqual(found, transcripts.scales())


if __name__ == "__main__":
    unittest.main()

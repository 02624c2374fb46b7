// SPDX-License-Identifier: Apache-2.0

// Float gives the float32 nearest to n units of 2^exponent, ties to even. bias is
// that of the job: 189 + exponent.
control Float(in int<64> n, in bit<16> bias, out bit<32> bits) {
    bit<64> m;
    bit<16> e;

    action normal(bit<8> left) {
        m = m << left;
        e = bias + 1 - (bit<16>)left;
    }
    action zero() { e = 0; }

    // The leading one of a magnitude: 64 prefixes.
    table leading {
        key = { m: lpm; }
        actions = { normal; zero; }
        const default_action = zero();
        const entries = {
#define LEADING(i) \
            (64w1 << (63 - (i))) &&& ~((64w1 << (63 - (i))) - 1): normal(i);
#define LEADING8(i) \
            LEADING(i) LEADING(i + 1) LEADING(i + 2) LEADING(i + 3) \
            LEADING(i + 4) LEADING(i + 5) LEADING(i + 6) LEADING(i + 7)
            LEADING8(0) LEADING8(8) LEADING8(16) LEADING8(24) LEADING8(32) LEADING8(40) LEADING8(48) LEADING8(56)
        }
    }

    apply {
        bits = 0;
        m = (bit<64>)n;
        if (n < 0) {
            m = 0 - m;
        }
        if (leading.apply().hit) {
            // 24 bits of significand and 40 of the rest: more than a half rounds up,
            // a half to the even neighbour.
            bit<64> half = 64w0x7fffffffff + (bit<64>)m[40:40];
            bit<65> rounded = (bit<65>)m + (bit<65>)half;
            if (rounded[64:64] == 1) { // all ones became the next power of two
                bits = ((bit<32>)e + 1) << 23;
            } else {
                bits = (bit<32>)e << 23 | (bit<32>)rounded[62:40];
            }
            bits[31:31] = (bit<1>)(bit<64>)n[63:63];
        }
    }
}

// SPDX-License-Identifier: Apache-2.0

// The addition of lut arithmetic, of float32 numbers by table lookup: package lut,
// add.go, step by step. The control plane fills the tables with what that package
// exports, before it starts the first job that needs them.

// Logarithm gives log2 of a normal number's magnitude, with 23 fraction bits: equation 1
// of the paper.
control Logarithm(in bit<32> p, out int<32> log) {
    bit<16> index;

    action take_epo(bit<16> entry) { log = (int<32>)(entry[8:0] ++ 23w0); }
    action take_log_m(bit<32> entry) { log = log + (int<32>)entry; }
    action take_log_delta(bit<16> entry) { index = entry; }
    action take_log_mln2(bit<16> entry) { index = index - entry; }
    action take_exp(bit<16> entry) { log = log + (int<32>)(bit<32>)entry; }

    table epo {
        key = { p[30:23]: exact @name("key"); }
        actions = { take_epo; NoAction; }
        const default_action = NoAction();
        size = 256;
    }
    table log_m {
        key = { p[22:12]: exact @name("key"); }
        actions = { take_log_m; NoAction; }
        const default_action = NoAction();
        size = 2048;
    }
    table log_delta {
        key = { p[11:0]: exact @name("key"); }
        actions = { take_log_delta; NoAction; }
        const default_action = NoAction();
        size = 4096;
    }
    table log_mln2 {
        key = { p[22:12]: exact @name("key"); }
        actions = { take_log_mln2; NoAction; }
        const default_action = NoAction();
        size = 2048;
    }
    table exp {
        key = { index: exact @name("key"); }
        actions = { take_exp; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }

    apply {
        log = 0;
        index = 0;
        epo.apply();
        log_m.apply();
        log_delta.apply();
        log_mln2.apply();
        exp.apply();
    }
}

// AddLut gives a + b, both finite, and whether the sum was cut to the largest number.
control AddLut(in bit<32> a, in bit<32> b, out bit<32> sum, out bit<1> cut) {
    Logarithm() of_larger;
    Logarithm() of_smaller;
    bit<32> x;        // the larger magnitude
    bit<32> y;
    bit<8> apart;     // exponents
    bit<32> d;        // the difference of two significands, of 25 bits
    int<16> e;
    int<32> i;        // log2 x
    int<32> j;        // log2 y
    int<32> theta;    // i - j, less the octave that sub does not have
    bit<16> index;
    bit<16> step;     // from log2 x to the logarithm of the sum
    bit<32> log;      // of the sum, with the bias of a float32's exponent

    action take_step(bit<16> entry) { step = entry; }
    action take_final(bit<16> entry) { sum = x[31:31] ++ log[30:23] ++ entry ++ 7w0; }
    action take_norm(bit<8> entry) { // the number of significant bits
        d = d << (25 - entry);
        e = e + (int<16>)(bit<16>)entry - 24;
    }

    table mi {
        key = { index: exact @name("key"); }
        actions = { take_step; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }
    table sub {
        key = { index: exact @name("key"); }
        actions = { take_step; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }
    table final {
        key = { index: exact @name("key"); }
        actions = { take_final; NoAction; }
        const default_action = NoAction();
        size = 65536;
    }
    // The leading one of a difference: 25 prefixes. The key has whole bytes, because
    // bmv2's P4Runtime server looks for the end of a prefix from the end of a byte.
    table norm {
        key = { d: lpm @name("key"); }
        actions = { take_norm; NoAction; }
        const default_action = NoAction();
        size = 25;
    }

    apply {
        cut = 0;
        x = a;
        y = b;
        if (a[30:0] < b[30:0]) {
            x = b;
            y = a;
        }
        sum = x;
        apart = x[30:23] - y[30:23];
        if (y[30:23] == 0) { // zero, or subnormal, which counts as zero
            if (x[30:23] == 0) {
                sum = 0;
            }
        } else if (x[31:31] != y[31:31] && apart <= 1) {
            // The sum may cancel: it is taken exactly, in units of y's last place.
            d = 9w1 ++ x[22:0];
            if (apart == 1) {
                d = d << 1;
            }
            d = d - (9w1 ++ y[22:0]);
            e = (int<16>)(bit<16>)y[30:23];
            sum = 0;
            if (norm.apply().hit) {
                if (e > 0) {
                    sum = x[31:31] ++ ((bit<16>)e)[7:0] ++ d[23:1];
                }
            }
        } else {
            of_larger.apply(x, i);
            of_smaller.apply(y, j);
            theta = i - j;
            if (x[31:31] != y[31:31]) {
                theta = theta - 0x800000;
            }
            if (theta < 0) { // an error of the logarithms
                theta = 0;
            }
            // Each octave of theta has half as many keys as the one before.
            bit<32> octaves = (bit<32>)theta;
            index = 0;
            if (octaves[30:27] == 0) {
                index = (1w1 ++ ~octaves[22:8]) >> octaves[26:23];
            }
            step = 0;
            if (x[31:31] != y[31:31]) {
                sub.apply();
                log = (bit<32>)(i + 0x3f800000) - ((bit<32>)step << 7);
            } else {
                mi.apply();
                log = (bit<32>)(i + 0x3f800000) + ((bit<32>)step << 7);
            }
            if (step != 0) { // otherwise y is too small to be seen
                if (log[31:23] >= 0xff) {
                    sum = x[31:31] ++ 31w0x7f7fffff;
                    cut = 1;
                } else {
                    index = log[22:7];
                    final.apply();
                }
            }
        }
    }
}

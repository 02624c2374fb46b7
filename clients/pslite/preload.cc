// SPDX-License-Identifier: Apache-2.0
// For programs with a shared library of ps-lite: this library, preloaded, has Van::Create before
// it.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "create.h"

namespace {

constexpr char kCreate[] = "_ZN2ps3Van6CreateERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

}  // namespace

ps::Van* ps::Van::Create(const std::string& type) {
  auto* next = reinterpret_cast<ps::Van* (*)(const std::string&)>(dlsym(RTLD_NEXT, kCreate));
  if (!next) {
    fprintf(stderr, "libra van: the program has no ps-lite that this library can call: link libra_van.a instead\n");
    exit(1);
  }
  return libra_van_create(type, next);
}

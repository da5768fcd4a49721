#include "bench/floors.h"

#include <sys/mman.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/floors.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::bench::HWY_NAMESPACE {

constexpr size_t kLanes = 16;

float StreamRead(const float* HWY_RESTRICT a, size_t size) {
  float sums[kLanes] = {};
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) sums[j] += a[i + j];
  }
  float sum = 0;
  for (float lane : sums) sum += lane;
  return sum;
}

void StreamR2W1(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, size_t size) {
  for (size_t i = 0; i < size; ++i) a[i] -= 1e-9f * b[i];
}

void StreamR4W3(float* HWY_RESTRICT a, const float* HWY_RESTRICT b, float* HWY_RESTRICT c,
                float* HWY_RESTRICT d, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    const float s = c[i] + 1e-9f * b[i];
    const float t = d[i] + 1e-9f * s;
    c[i] = s;
    d[i] = t;
    a[i] -= 1e-9f * t;
  }
}

float StepMath(const float* HWY_RESTRICT p, const float* HWY_RESTRICT c, float* HWY_RESTRICT g,
               size_t size) {
  float sums[kLanes] = {};
  for (size_t i = 0; i < size; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      sums[j] += p[i + j] * c[i + j];
      g[i + j] = 0.5f * c[i + j];
    }
  }
  float sum = 0;
  for (float lane : sums) sum += lane;
  return sum;
}

}  // namespace psd::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::bench {

HWY_EXPORT(StreamRead);
HWY_EXPORT(StreamR2W1);
HWY_EXPORT(StreamR4W3);
HWY_EXPORT(StepMath);

float StreamRead(const float* a, size_t size) {
  return HWY_DYNAMIC_DISPATCH(StreamRead)(a, size);
}

void StreamR2W1(float* a, const float* b, size_t size) {
  HWY_DYNAMIC_DISPATCH(StreamR2W1)(a, b, size);
}

void StreamR4W3(float* a, const float* b, float* c, float* d, size_t size) {
  HWY_DYNAMIC_DISPATCH(StreamR4W3)(a, b, c, d, size);
}

float StepMath(const float* p, const float* c, float* g, size_t size) {
  return HWY_DYNAMIC_DISPATCH(StepMath)(p, c, g, size);
}

MappedFloats::MappedFloats(size_t size)
    : size_(size),
      data_(static_cast<float*>(mmap(nullptr, size * sizeof(float), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  madvise(data_, size * sizeof(float), MADV_HUGEPAGE);
  for (size_t i = 0; i < size; ++i) data_[i] = 0.5f + 1e-3f * static_cast<float>(i & 7);
}

MappedFloats::~MappedFloats() {
  munmap(data_, size_ * sizeof(float));
}

void Consume(float value) {
  asm volatile("" : : "x"(value) : "memory");
}

}  // namespace psd::bench
#endif

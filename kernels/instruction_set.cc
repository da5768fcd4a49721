#include "kernels/instruction_set.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/instruction_set.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace psd::kernels {
namespace HWY_NAMESPACE {

const char* Name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace HWY_NAMESPACE
}  // namespace psd::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace psd::kernels {

HWY_EXPORT(Name);

const char* InstructionSet() {
  return HWY_DYNAMIC_DISPATCH(Name)();
}

}  // namespace psd::kernels
#endif  // HWY_ONCE

#include "core/autograd/creation_scope.h"

#include <utility>

namespace psd {
namespace {

thread_local Device* current_device = nullptr;

}  // namespace

CreationScope::CreationScope(Device* device) : previous_(std::exchange(current_device, device)) {}
CreationScope::~CreationScope() {
  current_device = previous_;
}

Device* CreationScope::CurrentDevice() {
  return current_device;
}

}  // namespace psd

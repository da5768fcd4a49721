#include "client/ddp/buffer_groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace psd {

std::string Description(const ReplicatedParameter& parameter) {
  return absl::StrCat(parameter.name, parameter.name.empty() ? "" : ", ",
                      DTypeName(parameter.dtype), parameter.shape.ToString(),
                      parameter.expert ? ", an expert" : "");
}

std::vector<size_t> DeviceNumbers(absl::Span<const ReplicatedParameter> parameters) {
  std::vector<size_t> numbers;
  std::vector<const Device*> devices;
  for (const ReplicatedParameter& parameter : parameters) {
    if (parameter.expert) continue;
    const auto found = std::find(devices.begin(), devices.end(), parameter.device);
    numbers.push_back(static_cast<size_t>(found - devices.begin()));
    if (found == devices.end()) devices.push_back(parameter.device);
  }
  return numbers;
}

namespace {

bool SharesBuffer(const ReplicatedParameter& parameter, const Device* device, DType dtype) {
  return parameter.device == device && parameter.dtype == dtype;
}

}  // namespace

int64_t BufferSize(absl::Span<const ReplicatedParameter> parameters, Device* device, DType dtype,
                   int64_t buffer_elements) {
  int64_t total = 0;
  for (const ReplicatedParameter& parameter : parameters)
    if (SharesBuffer(parameter, device, dtype)) total += parameter.shape.NumElements();
  return std::min(buffer_elements, total);
}

namespace {

// Adds the groups of the buffer for one device and dtype.
void GroupOneBuffer(absl::Span<const ReplicatedParameter> parameters, Device* device, DType dtype,
                    int64_t buffer_elements, std::vector<BufferGroup>& groups) {
  const int64_t room = BufferSize(parameters, device, dtype, buffer_elements);
  const BufferGroup empty{dtype, {}, 0, device};
  BufferGroup gathered = empty;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ReplicatedParameter& parameter = parameters[i];
    if (!SharesBuffer(parameter, device, dtype) || !parameter.requires_grad || parameter.expert)
      continue;
    const int64_t elements = parameter.shape.NumElements();
    if (elements > room) {
      groups.push_back({dtype, {i}, elements, device});
      continue;
    }
    if (gathered.elements + elements > room) groups.push_back(std::exchange(gathered, empty));
    gathered.parameters.push_back(i);
    gathered.elements += elements;
  }
  if (!gathered.parameters.empty()) groups.push_back(std::move(gathered));
}

}  // namespace

std::vector<BufferGroup> GroupForBuffers(absl::Span<const ReplicatedParameter> parameters,
                                         int64_t buffer_elements) {
  std::vector<BufferGroup> groups;
  std::vector<std::pair<Device*, DType>> done;
  for (const ReplicatedParameter& parameter : parameters) {
    if (parameter.expert) continue;  // it may be elsewhere on another rank
    const std::pair<Device*, DType> buffer(parameter.device, parameter.dtype);
    if (std::find(done.begin(), done.end(), buffer) != done.end()) continue;
    done.push_back(buffer);
    GroupOneBuffer(parameters, parameter.device, parameter.dtype, buffer_elements, groups);
  }
  return groups;
}

}  // namespace psd

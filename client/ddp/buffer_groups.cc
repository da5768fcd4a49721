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

int64_t BufferSize(absl::Span<const ReplicatedParameter> parameters, DType dtype,
                   int64_t buffer_elements) {
  int64_t total = 0;
  for (const ReplicatedParameter& parameter : parameters)
    if (parameter.dtype == dtype) total += parameter.shape.NumElements();
  return std::min(buffer_elements, total);
}

namespace {

void GroupOneDType(absl::Span<const ReplicatedParameter> parameters, DType dtype,
                   int64_t buffer_elements, std::vector<BufferGroup>& groups) {
  const int64_t room = BufferSize(parameters, dtype, buffer_elements);
  BufferGroup gathered{dtype, {}, 0};
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ReplicatedParameter& parameter = parameters[i];
    if (parameter.dtype != dtype || !parameter.requires_grad || parameter.expert) continue;
    const int64_t elements = parameter.shape.NumElements();
    if (elements > room) {
      groups.push_back({dtype, {i}, elements});
      continue;
    }
    if (gathered.elements + elements > room)
      groups.push_back(std::exchange(gathered, {dtype, {}, 0}));
    gathered.parameters.push_back(i);
    gathered.elements += elements;
  }
  if (!gathered.parameters.empty()) groups.push_back(std::move(gathered));
}

}  // namespace

std::vector<BufferGroup> GroupForBuffers(absl::Span<const ReplicatedParameter> parameters,
                                         int64_t buffer_elements) {
  std::vector<BufferGroup> groups;
  std::vector<DType> done;
  for (const ReplicatedParameter& parameter : parameters) {
    if (std::find(done.begin(), done.end(), parameter.dtype) != done.end()) continue;
    done.push_back(parameter.dtype);
    GroupOneDType(parameters, parameter.dtype, buffer_elements, groups);
  }
  return groups;
}

}  // namespace psd

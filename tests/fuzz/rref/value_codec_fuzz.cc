// An input is a payload. Its first byte is the number of buffers (at most 3). Then come the lengths
// of the header and of each buffer, two bytes each, and then their bytes.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/rref/value_codec.h"

namespace {

using psd::store::RemoteReference;
using psd::store::Value;

class Reference : public RemoteReference {
 public:
  explicit Reference(psd::rref::ForkData data) : data_(std::move(data)) {}
  psd::GlobalId value_id() const override { return data_.value; }
  const std::string& owner() const override { return data_.owner; }
  const psd::rref::ForkData& data() const { return data_; }

 private:
  psd::rref::ForkData data_;
};

absl::string_view Take(absl::string_view* input, size_t size) {
  absl::string_view taken = input->substr(0, size);
  input->remove_prefix(taken.size());
  return taken;
}

size_t TakeSize(absl::string_view* input) {
  size_t size = 0;
  for (char c : Take(input, 2)) size = size << 8 | static_cast<uint8_t>(c);
  return size;
}

psd::rpc::Payload ToPayload(absl::string_view input) {
  psd::rpc::Payload payload;
  if (input.empty()) return payload;
  size_t buffers = static_cast<uint8_t>(Take(&input, 1)[0]) % 4;
  payload.header = std::string(Take(&input, TakeSize(&input)));
  for (size_t i = 0; i < buffers; ++i) {
    payload.buffers.push_back(psd::Buffer::FromString(std::string(Take(&input, TakeSize(&input)))));
  }
  return payload;
}

absl::StatusOr<std::vector<Value>> Decode(const psd::rpc::Payload& payload) {
  return psd::rref::DecodeValues(
      payload,
      [](std::vector<psd::Tensor> tensors) -> absl::StatusOr<std::vector<psd::Variable>> {
        return std::vector<psd::Variable>(tensors.begin(), tensors.end());
      },
      [](const psd::rref::ForkRun& run) -> absl::StatusOr<std::vector<Value>> {
        std::vector<Value> references;
        for (const psd::rref::ForkRun::Fork& fork : run.forks)
          references.emplace_back(std::make_shared<const Reference>(run.DataOf(fork)));
        return references;
      });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto values = Decode(ToPayload({reinterpret_cast<const char*>(data), size}));
  if (!values.ok()) return 0;
  // Accepted values can be encoded again, and the result is accepted.
  auto again = psd::rref::EncodeValues(
      *values, [](const RemoteReference& reference, psd::rref::ForkData& data) {
        data = static_cast<const Reference&>(reference).data();
        return absl::OkStatus();
      });
  if (!again.ok() || !Decode(*again).ok()) abort();
  return 0;
}

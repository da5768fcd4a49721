#include "client/collectives/parcels.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/buffer.h"
#include "core/base/future.h"
#include "core/base/status.h"
#include "core/tensor/copy_to.h"

namespace psd {
namespace {

constexpr size_t kAlignment = 64;
// The most bytes of messages that are under way at once, because they take memory beside the
// tensors. A message counts at least kLoneBytes, because the group also limits the number of calls
// under way.
constexpr size_t kMostWaitingBytes = size_t{64} << 20;

size_t WaitingBytes(const Parcel& parcel) {
  return std::max(parcel.bytes, kLoneBytes);
}

size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

TensorForm FormOf(const Tensor& tensor) {
  return {tensor.dtype(), tensor.shape()};
}

Device* DeviceOf(const std::vector<Device*>& devices, size_t position) {
  return devices.empty() ? nullptr : devices[position];
}

// Returns the parcel among `open` that takes tensors of `device`.
Parcel& OpenFor(Device* device, std::vector<Parcel>& open) {
  for (Parcel& each : open)
    if (each.device == device) return each;
  return open.emplace_back(Parcel{{}, 0, device});
}

}  // namespace

std::vector<Parcel> PlanParcels(const std::vector<TensorForm>& forms,
                                const std::vector<Device*>& devices) {
  std::vector<Parcel> parcels;
  std::vector<Parcel> open;  // one for each device, in the order in which they appear
  for (size_t i = 0; i < forms.size(); ++i) {
    Device* const device = DeviceOf(devices, i);
    const size_t bytes = forms[i].NumBytes();
    if (bytes == 0) continue;
    if (bytes >= kLoneBytes) {
      parcels.push_back({{i}, bytes, device});
      continue;
    }
    Parcel& together = OpenFor(device, open);
    if (together.bytes + bytes > kMostParcelBytes)
      parcels.push_back(std::exchange(together, {{}, 0, device}));
    together.members.push_back(i);
    together.bytes += RoundUp(bytes);
  }
  parcels.insert(parcels.end(), open.begin(), open.end());
  // The message of a single tensor has no padding.
  for (Parcel& parcel : parcels)
    if (parcel.members.size() == 1) parcel.bytes = forms[parcel.members[0]].NumBytes();
  return parcels;
}

std::vector<TensorForm> FormsOf(const std::vector<Tensor>& tensors) {
  std::vector<TensorForm> forms;
  for (const Tensor& tensor : tensors) forms.push_back(FormOf(tensor));
  return forms;
}

absl::StatusOr<std::vector<Tensor>> WithoutElements(const std::vector<TensorForm>& forms,
                                                    const std::vector<Device*>& devices) {
  std::vector<Tensor> tensors(forms.size());
  for (size_t i = 0; i < forms.size(); ++i) {
    if (forms[i].NumBytes() > 0) continue;
    PSD_ASSIGN_OR_RETURN(
        tensors[i], Tensor::Empty(forms[i].shape, forms[i].dtype, MemoryOf(DeviceOf(devices, i))));
  }
  return tensors;
}

namespace {

TensorForm FormOfMessage(const Parcel& parcel, const std::vector<TensorForm>& forms) {
  if (parcel.members.size() == 1) return forms[parcel.members[0]];
  return {DType::kU8, {static_cast<int64_t>(parcel.bytes)}};
}

}  // namespace

absl::StatusOr<Tensor> Pack(const Parcel& parcel, const std::vector<Tensor>& tensors) {
  if (parcel.members.size() == 1) return tensors[parcel.members[0]].Contiguous();
  Device* const device = parcel.device;
  PSD_ASSIGN_OR_RETURN(Tensor message, Tensor::Empty({static_cast<int64_t>(parcel.bytes)},
                                                     DType::kU8, MemoryOf(device)));
  PSD_ASSIGN_OR_RETURN(const Tensor zeros,
                       Tensor::Zeros({kAlignment}, DType::kU8, MemoryOf(device)));
  std::byte* out = message.mutable_address();
  for (const size_t member : parcel.members) {
    PSD_ASSIGN_OR_RETURN(const Tensor dense, tensors[member].Contiguous());
    const size_t bytes = dense.NumBytes();
    PSD_RETURN_IF_ERROR(CopyBytes(device, out, device, dense.address(), bytes));
    PSD_RETURN_IF_ERROR(
        CopyBytes(device, out + bytes, device, zeros.address(), RoundUp(bytes) - bytes));
    out += RoundUp(bytes);
  }
  return message;
}

absl::Status Unpack(const Parcel& parcel, const std::vector<TensorForm>& forms,
                    const Tensor& message, std::vector<Tensor>& tensors) {
  const TensorForm expected = FormOfMessage(parcel, forms);
  if (!message.defined() || FormOf(message) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("a message with ", parcel.members.size(),
                                                   " tensors is ", message.ToString(),
                                                   ", expected ", expected.ToString()));
  }
  PSD_ASSIGN_OR_RETURN(const Tensor there, CopyTo(parcel.device, message));
  if (parcel.members.size() == 1) {
    tensors[parcel.members[0]] = there;
    return absl::OkStatus();
  }
  const Buffer bytes = there.AsBuffer();
  size_t offset = 0;
  for (const size_t member : parcel.members) {
    const size_t size = forms[member].NumBytes();
    PSD_ASSIGN_OR_RETURN(
        tensors[member],
        Tensor::FromBuffer(forms[member].shape, forms[member].dtype, bytes.Slice(offset, size)));
    offset += RoundUp(size);
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<std::vector<std::vector<Tensor>>> Exchange(Group& group,
                                                          const std::vector<ParcelSource>& sources,
                                                          const CollectiveOptions& options) {
  struct Waiting {
    size_t source;
    Parcel parcel;
    Future<Tensor> message;
  };
  std::vector<std::vector<Tensor>> all(sources.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    if (sources[s].root == group.rank()) {
      all[s] = sources[s].tensors;
    } else {
      PSD_ASSIGN_OR_RETURN(all[s], WithoutElements(sources[s].forms, sources[s].devices));
    }
  }
  std::deque<Waiting> waiting;
  size_t waiting_bytes = 0;
  const auto take = [&]() -> absl::Status {
    const Waiting& first = waiting.front();
    PSD_RETURN_IF_ERROR(first.message.Wait().status());
    if (sources[first.source].root != group.rank()) {
      PSD_RETURN_IF_ERROR(Unpack(first.parcel, sources[first.source].forms, *first.message.Wait(),
                                 all[first.source]));
    }
    waiting_bytes -= WaitingBytes(first.parcel);
    waiting.pop_front();
    return absl::OkStatus();
  };
  for (size_t s = 0; s < sources.size(); ++s) {
    const bool mine = sources[s].root == group.rank();
    for (Parcel& parcel : PlanParcels(sources[s].forms, sources[s].devices)) {
      const size_t bytes = WaitingBytes(parcel);
      while (!waiting.empty() && waiting_bytes + bytes > kMostWaitingBytes)
        PSD_RETURN_IF_ERROR(take());
      Tensor given;  // undefined on other ranks' hosts: Unpack checks the message
      if (mine) {
        PSD_ASSIGN_OR_RETURN(given, Pack(parcel, sources[s].tensors));
      } else if (parcel.device != nullptr) {
        // Devices perform the call only if each rank gives a tensor on one. This one is freed at
        // once.
        const TensorForm form = FormOfMessage(parcel, sources[s].forms);
        PSD_ASSIGN_OR_RETURN(given, Tensor::Empty(form.shape, form.dtype, MemoryOf(parcel.device)));
      }
      waiting.push_back(
          {s, std::move(parcel), group.BroadcastAsync(given, sources[s].root, options)});
      waiting_bytes += bytes;
      // A refused call does not count, so the other ranks would take the next call for this one.
      const Future<Tensor>& entered = waiting.back().message;
      if (entered.IsReady()) PSD_RETURN_IF_ERROR(entered.Wait().status());
    }
  }
  while (!waiting.empty()) PSD_RETURN_IF_ERROR(take());
  return all;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Tensor>>> BroadcastParcels(
    Group& group, const std::vector<ParcelSource>& sources, const CollectiveOptions& options) {
  auto all = Exchange(group, sources, options);
  if (!all.ok()) return group.Fail(all.status());  // the others wait for messages that do not come
  return all;
}

}  // namespace psd

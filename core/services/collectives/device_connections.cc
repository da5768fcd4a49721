#include "core/services/collectives/device_connections.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/executor.h"
#include "core/base/quoted.h"
#include "core/base/status.h"
#include "core/tensor/dtype.h"

namespace psd::services {
namespace {

// The pause between two questions whether a communicator is ready.
constexpr absl::Duration kPause = absl::Microseconds(100);
// The most reasons that are logged.
constexpr size_t kMostExplained = 16;

absl::StatusOr<Tensor> BytesTensor(const std::string& bytes) {
  PSD_ASSIGN_OR_RETURN(Tensor tensor,
                       Tensor::Empty({static_cast<int64_t>(bytes.size())}, DType::kU8));
  std::memcpy(tensor.mutable_raw_data(), bytes.data(), bytes.size());
  return tensor;
}

absl::string_view BytesOf(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw_data()), tensor.NumBytes()};
}

}  // namespace

DeviceOffer DeviceConnections::OfferFor(const Wanted& wanted) {
  DeviceOffer offer;
  offer.call = ChecksumOf(wanted.call);
  const bool is_large =
      wanted.call.form.has_value() && wanted.call.form->NumBytes() >= kLeastDeviceBytes;
  if (wanted.device == nullptr || !is_large) return offer;
  DeviceCollectives* const collectives = wanted.device->collectives();
  if (collectives == nullptr) return offer;
  const absl::StatusOr<std::string> library = collectives->Library();
  const absl::StatusOr<std::string> identity = collectives->Identity();
  if (!library.ok() || !identity.ok()) {
    Explain(std::string((library.ok() ? identity.status() : library.status()).message()));
    offer.kind = DeviceOffer::kNoLibrary;
    return offer;
  }
  offer.kind = DeviceOffer::kDevice;
  offer.library = *library;
  offer.identity = *identity;
  return offer;
}

absl::StatusOr<DeviceConnections::Communicator> DeviceConnections::Agree(const Wanted& wanted) {
  const std::string mine = EncodeOffer(OfferFor(wanted));
  PSD_ASSIGN_OR_RETURN(const Tensors told, Exchange(Operation::kAllGather, wanted, mine));
  std::vector<DeviceOffer> offers;
  std::vector<std::string> gpus;
  bool agree = true;
  for (const Tensor& record : told) {
    offers.push_back(DecodeOffer(BytesOf(record)));
    gpus.push_back(offers.back().identity);
    agree &= offers.back().call == offers.front().call;
  }
  const auto is_elsewhere = [](const DeviceOffer& offer) {
    return offer.kind == DeviceOffer::kHost;
  };
  // The call through the host names the difference.
  if (!agree || std::all_of(offers.begin(), offers.end(), is_elsewhere)) return nullptr;
  if (const std::string obstacle = ObstacleTo(offers, group_.members().Names());
      !obstacle.empty()) {
    Explain(obstacle);
    return nullptr;
  }
  const std::string key = absl::StrJoin(gpus, " ");
  {
    MutexLock lock(mutex_);
    if (const auto known = communicators_.find(key); known != communicators_.end())
      return known->second;
    if (communicators_.size() == kMostCommunicators) gpus.clear();
  }
  if (gpus.empty()) {
    Explain(absl::StrCat("the ranks have connected ", kMostCommunicators,
                         " other sets of GPUs already"));
    return nullptr;
  }
  return Connect(wanted, key);
}

absl::StatusOr<DeviceConnections::Communicator> DeviceConnections::Connect(
    const Wanted& wanted, const std::string& gpus) {
  // An id begins with a byte that says whether there is one.
  std::string made(1 + DeviceCollectives::kIdBytes, '\0');
  absl::Status status;
  if (group_.members().rank == 0) {
    const absl::StatusOr<std::string> id = wanted.device->collectives()->NewId();
    status = id.status();
    if (id.ok()) made = absl::StrCat("\1", *id);
  }
  PSD_ASSIGN_OR_RETURN(const Tensors told, Exchange(Operation::kBroadcast, wanted, made));
  const absl::string_view id = BytesOf(told[0]);
  Communicator communicator;
  if (id[0] != '\0') {
    absl::StatusOr<Communicator> opened = Open(wanted, std::string(id.substr(1)));
    status = opened.status();
    if (opened.ok()) communicator = *std::move(opened);
  }
  PSD_ASSIGN_OR_RETURN(const Tensors connected,
                       Exchange(Operation::kAllGather, wanted,
                                std::string(1, communicator != nullptr ? '\1' : '\0')));
  if (!status.ok()) Explain(std::string(status.message()));
  std::vector<std::string> failed;
  for (size_t rank = 0; rank < connected.size(); ++rank)
    if (BytesOf(connected[rank])[0] == '\0') failed.push_back(group_.members().Names()[rank]);
  if (!failed.empty()) {
    if (communicator != nullptr) communicator->Abort();
    communicator = nullptr;
    Explain(absl::StrCat(absl::StrJoin(failed, ", "), " could not connect to the other GPUs"));
  }
  Communicator dropped;  // without the lock
  MutexLock lock(mutex_);
  connecting_.swap(dropped);
  if (!ended_) communicators_[gpus] = communicator;
  return communicator;
}

// Half of the time that is left is for the way through the host.
absl::StatusOr<DeviceConnections::Communicator> DeviceConnections::Open(const Wanted& wanted,
                                                                        const std::string& id) {
  const GroupMembers& members = group_.members();
  PSD_ASSIGN_OR_RETURN(Communicator communicator,
                       wanted.device->collectives()->Connect(
                           id, members.rank, static_cast<int>(members.workers.size())));
  {
    MutexLock lock(mutex_);
    if (!ended_) connecting_ = communicator;
  }
  const absl::Time now = group_.Now();
  const absl::Status connected = Await(*communicator, now + (wanted.until - now) / 2);
  if (connected.ok()) return communicator;
  communicator->Abort();
  return connected;
}

absl::StatusOr<DeviceConnections::Tensors> DeviceConnections::Exchange(Operation operation,
                                                                       const Wanted& wanted,
                                                                       const std::string& mine,
                                                                       int root) {
  PSD_ASSIGN_OR_RETURN(Tensor own, BytesTensor(mine));
  CollectiveCall call;
  call.operation = operation;
  call.form = TensorForm{own.dtype(), own.shape()};
  call.root = root;
  call.label = wanted.call.label;
  Tensors inputs;
  if (operation != Operation::kBroadcast || group_.members().rank == root)
    inputs.push_back(std::move(own));
  return group_.Start(std::move(call), std::move(inputs), TimeLeft(wanted.until)).Wait();
}

absl::Duration DeviceConnections::TimeLeft(absl::Time until) const {
  return std::max(until - group_.Now(), absl::Milliseconds(1));
}

absl::Status DeviceConnections::Await(DeviceCommunicator& communicator, absl::Time until) {
  const ScopedBlocking blocking;
  for (;;) {
    PSD_RETURN_IF_ERROR(group_.failure());
    PSD_ASSIGN_OR_RETURN(const bool ready, communicator.IsReady());
    if (ready) return absl::OkStatus();
    if (group_.Now() >= until)
      return absl::DeadlineExceededError(absl::StrCat("the GPUs of group ",
                                                      Quoted(group_.members().name),
                                                      " were not ready in the time of the call"));
    absl::SleepFor(kPause);
  }
}

void DeviceConnections::End() {
  std::vector<Communicator> communicators;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    for (const auto& [gpus, communicator] : communicators_)
      if (communicator != nullptr) communicators.push_back(communicator);
    communicators_.clear();
    if (connecting_ != nullptr) communicators.push_back(std::move(connecting_));
  }
  if (group_.has_left()) {
    // Other ranks may still receive what this rank has sent.
    const absl::Time until = group_.Now() + kMostFinishing;
    const ScopedBlocking blocking;
    for (const Communicator& communicator : communicators) {
      absl::StatusOr<bool> over = false;
      if (const absl::Status begun = communicator->Finish(); !begun.ok()) over = begun;
      while (over.ok() && !*over && group_.Now() < until) {
        over = communicator->IsReady();
        if (over.ok() && !*over) absl::SleepFor(kPause);
      }
    }
  }
  for (const Communicator& communicator : communicators) communicator->Abort();
}

void DeviceConnections::Explain(const std::string& why) {
  {
    MutexLock lock(mutex_);
    if (explained_.size() == kMostExplained || !explained_.insert(why).second) return;
  }
  const std::string& name = group_.members().name;
  logger_.Log(
      LogLevel::kWarning, "group_through_host",
      absl::StrCat("tensors on GPUs travel through the host in group ", Quoted(name), ": ", why),
      {{"group", name}});
}

}  // namespace psd::services

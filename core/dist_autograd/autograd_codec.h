#pragma once

// The messages of distributed autograd (proto/psd/v1/autograd.proto) as plain structs. The decoders
// check every field; their errors are INVALID_ARGUMENT naming the field.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/dist_autograd/backward_options.h"
#include "core/rpc/rpc_agent.h"

namespace psd::dist_autograd {

// Attached to a request or a reply. Says which of its tensors require grad, and on which messages
// these depend.
struct MessageInfo {
  GlobalId context;
  GlobalId message;                // no id if no tensor requires grad
  std::string requires_grad;       // one byte per tensor, 0 or 1; empty if none requires grad
  std::vector<GlobalId> upstream;  // messages that the sender had received
  bool takes_pieces = false;       // whether the sender takes large gradients in pieces
};
std::string EncodeMessageInfo(const MessageInfo& info);
absl::StatusOr<MessageInfo> DecodeMessageInfo(const std::string& bytes);

// The description of a pass, which every message of the pass carries.
struct PassInfo {
  GlobalId context;
  GlobalId pass;
  BackwardMode mode = BackwardMode::kExact;
  bool retain_graph = false;
  absl::Duration timeout;
};

// Says how the receiver of gradients learns which of its send functions will receive gradients.
enum class StartBy {
  kListed,     // the list is in `expected`
  kElsewhere,  // the list is in another message of the pass
  kMarked,     // they were marked before
  kAll,        // all send functions of the context will
};

struct GradientInfo {
  PassInfo pass;
  GlobalId message;
  StartBy start = StartBy::kElsewhere;
  std::vector<uint64_t> expected;  // counters of the ids of the receiver's messages
};
std::string EncodeGradientInfo(const GradientInfo& info);
absl::StatusOr<GradientInfo> DecodeGradientInfo(const std::string& bytes);

struct MarkInfo {
  PassInfo pass;
  std::vector<uint64_t> messages;  // counters of the ids of the receiver's messages
};
std::string EncodeMarkInfo(const MarkInfo& info);
absl::StatusOr<MarkInfo> DecodeMarkInfo(const std::string& bytes);

struct AbortInfo {
  GlobalId context;
  GlobalId pass;
  absl::Status status;
};
std::string EncodeAbortInfo(const AbortInfo& info);
absl::StatusOr<AbortInfo> DecodeAbortInfo(const std::string& bytes);

// The answer to gradients. No bytes mean that they were taken and there is nothing to say.
inline constexpr size_t kMaxReachedWorkers = 4096;
struct GradientAnswer {
  std::vector<std::string> reached;  // workers that a context has reached
  // If this is an error, the receiver could not read gradients that were lent or left out, and took
  // none.
  absl::Status refused;
};
std::string EncodeGradientAnswer(const GradientAnswer& answer);
absl::StatusOr<GradientAnswer> DecodeGradientAnswer(const std::string& bytes);

std::string EncodeRelease(const std::vector<GlobalId>& contexts);
absl::StatusOr<std::vector<GlobalId>> DecodeRelease(const std::string& bytes);

}  // namespace psd::dist_autograd

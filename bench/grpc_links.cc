#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/rank_links.h"
#include "core/base/memory_budget.h"
#include "core/base/status.h"
#include "core/carrier/grpc/channel_settings.h"
#include "core/carrier/grpc/grpc_factory.h"

namespace psd::bench {
namespace {

constexpr char kMethod[] = "/floor/Exchange";
constexpr size_t kPieceBytes = size_t{1} << 20;

// One end of a stream between two ranks.
struct End {
  virtual ~End() = default;
  virtual void Read(grpc::ByteBuffer* message, void* tag) = 0;
  virtual void Write(const grpc::ByteBuffer& message, void* tag) = 0;
};

struct DialledEnd : End {
  void Read(grpc::ByteBuffer* message, void* tag) override { stream->Read(message, tag); }
  void Write(const grpc::ByteBuffer& message, void* tag) override { stream->Write(message, tag); }

  grpc::ClientContext context;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream;
};

struct AcceptedEnd : End {
  void Read(grpc::ByteBuffer* message, void* tag) override { stream.Read(message, tag); }
  void Write(const grpc::ByteBuffer& message, void* tag) override { stream.Write(message, tag); }

  grpc::GenericServerContext context;
  grpc::GenericServerAsyncReaderWriter stream{&context};
};

// The gRPC objects of one rank: a server, and a completion queue for the streams that the rank has
// accepted and dialled.
class RankServer {
 public:
  explicit RankServer(const carrier::GrpcCarrierOptions& options) {
    grpc::ServerBuilder builder;
    carrier::ConfigureServer(options, builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
  }
  ~RankServer() {
    for (const auto& end : ends_) {
      if (auto* dialled = dynamic_cast<DialledEnd*>(end.get())) dialled->context.TryCancel();
    }
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_->Next(&tag, &ok)) {
    }
  }

  bool listens() const { return server_ != nullptr && port_ != 0; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  grpc::ServerCompletionQueue& queue() { return *queue_; }

  // Both complete on the queue with a null tag, when they are joined to each other.
  End* Accept() {
    auto end = std::make_unique<AcceptedEnd>();
    service_.RequestCall(&end->context, &end->stream, queue_.get(), queue_.get(), nullptr);
    ends_.push_back(std::move(end));
    return ends_.back().get();
  }
  End* Dial(const std::string& address, const grpc::ChannelArguments& arguments) {
    auto end = std::make_unique<DialledEnd>();
    grpc::GenericStub stub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    end->stream = stub.PrepareCall(&end->context, kMethod, queue_.get());
    end->stream->StartCall(nullptr);
    ends_.push_back(std::move(end));
    return ends_.back().get();
  }

 private:
  grpc::AsyncGenericService service_;
  int port_ = 0;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::unique_ptr<End>> ends_;
};

// Waits for the next operation on the queue, or until `given_up` is set. The thread sleeps
// meanwhile, like psd's threads. Returns whether the operation succeeded.
bool NextOf(grpc::CompletionQueue& queue, void** tag, const std::atomic<bool>* given_up = nullptr) {
  constexpr auto kLookEvery = std::chrono::milliseconds(10);
  bool ok = false;
  if (given_up == nullptr) return queue.Next(tag, &ok) && ok;
  while (queue.AsyncNext(tag, &ok, std::chrono::system_clock::now() + kLookEvery) !=
         grpc::CompletionQueue::GOT_EVENT) {
    if (given_up->load()) return false;
  }
  return ok;
}

// The bytes that a rank still has to send to one other rank and to receive from it, in pieces.
class Transfer {
 public:
  Transfer(End& end, const Parcel& parcel)
      : end_(end),
        out_(reinterpret_cast<const char*>(parcel.out)),
        out_bytes_(parcel.out_elements * sizeof(float)),
        in_(reinterpret_cast<char*>(parcel.in)),
        in_bytes_(parcel.in_elements * sizeof(float)) {}

  void Begin() {
    WriteNext();
    ReadNext();
  }
  // An operation with this tag has succeeded. Returns whether all is done.
  bool Continue(void* tag) {
    if (tag == &out_bytes_) {
      out_bytes_ -= sending_;
      out_ += sending_;
      WriteNext();
    } else {
      Take();
      ReadNext();
    }
    return done();
  }
  bool Has(const void* tag) const { return tag == &out_bytes_ || tag == &in_bytes_; }
  bool done() const { return out_bytes_ == 0 && in_bytes_ == 0; }

 private:
  void WriteNext() {
    sending_ = std::min(out_bytes_, kPieceBytes);
    if (sending_ == 0) return;
    const grpc::Slice slice(out_, sending_, grpc::Slice::STATIC_SLICE);
    end_.Write(grpc::ByteBuffer(&slice, 1), &out_bytes_);
  }
  void ReadNext() {
    if (in_bytes_ > 0) end_.Read(&piece_, &in_bytes_);
  }
  void Take() {
    std::vector<grpc::Slice> slices;
    PSD_CHECK(piece_.Dump(&slices).ok(), "a message of the floor cannot be read");
    for (const grpc::Slice& slice : slices) {
      PSD_CHECK(slice.size() <= in_bytes_, "a stream to itself has too many bytes");
      std::memcpy(in_, slice.begin(), slice.size());
      in_ += slice.size();
      in_bytes_ -= slice.size();
    }
  }

  End& end_;
  const char* out_;
  size_t out_bytes_;  // its address is the tag of writes
  size_t sending_ = 0;
  char* in_;
  size_t in_bytes_;  // its address is the tag of reads
  grpc::ByteBuffer piece_;
};

class GrpcLinks : public RankLinks {
 public:
  explicit GrpcLinks(size_t ranks) : ends_(ranks, std::vector<End*>(ranks)) {}

  absl::Status Join() {
    carrier::GrpcCarrierOptions options;
    options.memory = MemoryBudget::Create(0);
    // Nobody reads, and so nobody answers pings, while another program has its turn.
    options.keepalive_time = absl::Hours(24);
    for (size_t rank = 0; rank < ends_.size(); ++rank) {
      ranks_.push_back(std::make_unique<RankServer>(options));
      if (!ranks_.back()->listens()) return absl::UnavailableError("grpc links: cannot listen");
    }
    const grpc::ChannelArguments arguments =
        carrier::ArgumentsOfChannel(options, carrier::Window::kProbed);
    for (size_t i = 0; i < ends_.size(); ++i) {
      for (size_t j = i + 1; j < ends_.size(); ++j) {
        ends_[i][j] = ranks_[i]->Accept();
        ends_[j][i] = ranks_[j]->Dial(ranks_[i]->address(), arguments);
        // The dialling rank's thread moves its side of the connection.
        std::atomic<bool> refused{false};
        std::thread dialling([&] {
          void* tag = nullptr;
          if (!NextOf(ranks_[j]->queue(), &tag)) refused = true;
        });
        void* tag = nullptr;
        const bool accepted = NextOf(ranks_[i]->queue(), &tag, &refused);
        dialling.join();
        if (refused || !accepted) return absl::UnavailableError("grpc links: cannot connect");
      }
    }
    return absl::OkStatus();
  }

  void Exchange(size_t rank, const std::vector<Parcel>& parcels) override {
    std::vector<Transfer> transfers;
    transfers.reserve(parcels.size());  // tags are addresses
    size_t left = 0;
    for (const Parcel& parcel : parcels) {
      transfers.emplace_back(*ends_[rank][parcel.other], parcel);
      transfers.back().Begin();
      left += transfers.back().done() ? 0 : 1;
    }
    while (left > 0) {
      void* tag = nullptr;
      PSD_CHECK(NextOf(ranks_[rank]->queue(), &tag), "a stream to itself broke");
      const auto transfer = std::find_if(transfers.begin(), transfers.end(),
                                         [tag](const Transfer& one) { return one.Has(tag); });
      PSD_CHECK(transfer != transfers.end(), "an operation of an earlier exchange ends");
      if (transfer->Continue(tag)) --left;
    }
  }

 private:
  std::vector<std::vector<End*>> ends_;  // [i][j]: the end of rank i of its stream to rank j
  std::vector<std::unique_ptr<RankServer>> ranks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankLinks>> LinkOverGrpc(size_t ranks) {
  auto links = std::make_unique<GrpcLinks>(ranks);
  PSD_RETURN_IF_ERROR(links->Join());
  return links;
}

}  // namespace psd::bench

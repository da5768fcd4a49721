// A link takes over the streams that a peer opens. The tests cover moments that a real network
// hides.

#include "core/carrier/grpc/grpc_link.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/memory_budget.h"
#include "core/carrier/grpc/completion_tag.h"
#include "core/carrier/grpc/grpc_core.h"
#include "core/carrier/grpc/grpc_stream.h"
#include "gtest/gtest.h"

namespace psd::carrier {
namespace {

void Complete(void* tag, bool ok) {
  static_cast<CompletionTag*>(tag)->Complete(ok);
}

// A stream without a network. Writes complete at once, and nothing ever arrives.
class FakeStream : public GrpcStream {
 public:
  static std::shared_ptr<FakeStream> Started() {
    auto stream = std::make_shared<FakeStream>();
    stream->OnStartDone(true);
    return stream;
  }
  int writes() const { return network_.writes; }
  std::string Peer() const override { return "ipv4:127.0.0.1:1"; }

 private:
  struct Network : Reader, Writer {
    void Read(grpc::ByteBuffer*, void* tag) override { reading = tag; }
    void Write(const grpc::ByteBuffer&, void* tag) override {
      ++writes;
      Complete(tag, true);
    }
    void Write(const grpc::ByteBuffer& bytes, grpc::WriteOptions, void* tag) override {
      Write(bytes, tag);
    }
    void* reading = nullptr;
    int writes = 0;
  };

  Reader& reader() override { return network_; }
  Writer& writer() override { return network_; }
  void StartFinish(grpc::Status*, void* tag) override { Complete(tag, true); }
  void TryCancel() override {
    if (void* tag = std::exchange(network_.reading, nullptr)) Complete(tag, false);
  }

  Network network_;
};

// The owner of a stream until a link takes the stream. Calls `gone` at that moment.
class FormerOwner : public StreamOwner {
 public:
  explicit FormerOwner(std::function<void()> gone) : gone_(std::move(gone)) {}
  ~FormerOwner() override { gone_(); }
  void OnStarted(const std::shared_ptr<GrpcStream>&) override {}
  void OnRead(const std::shared_ptr<GrpcStream>&, const grpc::ByteBuffer&) override {}
  void OnWritten(const std::shared_ptr<GrpcStream>&) override {}
  void OnEnded(const std::shared_ptr<GrpcStream>&, const grpc::Status&) override {}

 private:
  const std::function<void()> gone_;
};

class IgnoringHandler : public LinkHandler {
 public:
  void OnMessage(Message) override {}
  void OnRefused(std::string, absl::Status) override {}
  void OnClosed(absl::Status) override {}
};

class GrpcLinkTest : public ::testing::Test {
 protected:
  GrpcLinkTest() {
    GrpcCarrierOptions options;
    options.memory = MemoryBudget::Create(0);
    options.allocator = options.memory->transit();
    options.linger = absl::ZeroDuration();
    core_ = std::make_shared<GrpcCore>(options);
    hello_.token = NewLinkToken();
    hello_.max_unread_bytes = size_t{1} << 20;
  }
  ~GrpcLinkTest() override {
    for (const auto& link : core_->BeginShutdown()) link->Close();
    core_->AwaitQuiet();
    core_->Stop();
  }
  // Makes a link from a control stream.
  std::shared_ptr<GrpcLink> Accept(const std::shared_ptr<GrpcStream>& control) {
    GrpcLink::Accept(core_, control, hello_, [](const std::shared_ptr<Link>&) {
      return std::make_shared<IgnoringHandler>();
    });
    return core_->Find(hello_.token);
  }
  // Returns a message of one frame that is too large for the control stream.
  static Message Whole() {
    Message message;
    message.buffers.push_back(Buffer::FromString(std::string(kMaxInlineBytes + 1, 'x')));
    return message;
  }
  HelloFrame WholeHello() const {
    HelloFrame hello = hello_;
    hello.role = StreamRole::kWhole;
    return hello;
  }

  std::shared_ptr<GrpcCore> core_;
  HelloFrame hello_;
};

TEST_F(GrpcLinkTest, AControlStreamHasItsOwnerBeforeItsLinkCanBeFound) {
  auto control = FakeStream::Started();
  bool found = true;
  control->SetOwner(
      std::make_shared<FormerOwner>([&] { found = core_->Find(hello_.token) != nullptr; }));
  ASSERT_NE(Accept(control), nullptr);
  EXPECT_FALSE(found) << "who finds the link may end it, and the stream would tell nobody";
}

TEST_F(GrpcLinkTest, AStreamHasItsOwnerBeforeItsLinkWritesToIt) {
  std::shared_ptr<GrpcLink> link = Accept(FakeStream::Started());
  auto early = FakeStream::Started();
  auto late = FakeStream::Started();
  bool free = false;
  // The place of the stream is free as long as the link does not know the first stream.
  early->SetOwner(std::make_shared<FormerOwner>([&] { free = link->Adopt(late, WholeHello()); }));
  EXPECT_FALSE(link->Adopt(early, WholeHello())) << "its place was taken meanwhile";
  EXPECT_TRUE(free) << "a write that completes now would be lost";
  ASSERT_TRUE(link->Send(Whole()).ok());
  ASSERT_TRUE(link->Send(Whole()).ok());
  EXPECT_EQ(late->writes(), 2);
  EXPECT_EQ(early->writes(), 0);
}

TEST_F(GrpcLinkTest, AStreamThatHasEndedIsNotAdopted) {
  std::shared_ptr<GrpcLink> link = Accept(FakeStream::Started());
  auto stream = FakeStream::Started();
  stream->Abort();
  EXPECT_FALSE(link->Adopt(stream, WholeHello()));
  EXPECT_TRUE(link->Adopt(FakeStream::Started(), WholeHello()));
}

}  // namespace
}  // namespace psd::carrier

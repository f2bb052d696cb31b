// What a program does with RabbitMQ's AMQP 1.0 client for Java: one line of output for each part.

import static com.rabbitmq.client.amqp.Management.ExchangeType.DIRECT;

import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.ConsumerBuilder.StreamOffsetSpecification;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public class RabbitMqExchange {
    static final long WITHIN_S = 20;
    static final int MESSAGES = 200;

    static Connection connection;
    static Management management;
    static String name;

    public static void main(String[] arguments) throws Exception {
        name = arguments[1];
        try (Environment environment = new AmqpEnvironmentBuilder().build()) {
            connection = environment.connectionBuilder().uri(arguments[0]).build();
            management = connection.management();
            System.out.println("declared " + declared());
            System.out.println("published " + published());
            System.out.println("settled " + settled());
            System.out.println("stream " + stream());
            System.out.println("answered " + answered());
            System.out.println("refused " + refused());
            connection.close();
        }
    }

    static String declared() {
        management.exchange(name + "-exchange").type(DIRECT).declare();
        management.queue(name + "-dead").classic().queue().declare();
        var info = management.queue(name)
            .quorum().deliveryLimit(5).queue()
            .deadLetterExchange("").deadLetterRoutingKey(name + "-dead")
            .maxLength(10_000)
            .declare();
        management.binding().sourceExchange(name + "-exchange").destinationQueue(name).key("key").bind();
        return info.type() + " " + info.durable() + " " + info.messageCount();
    }

    static String published() throws Exception {
        List<Publisher.Status> outcomes = Collections.synchronizedList(new ArrayList<>());
        var all = new CountDownLatch(MESSAGES + 1);
        try (
            Publisher publisher = connection.publisherBuilder().exchange(name + "-exchange").key("key").build();
            Publisher nowhere = connection.publisherBuilder().exchange(name + "-exchange").key("other").build()
        ) {
            Publisher.Callback callback = context -> {
                outcomes.add(context.status());
                all.countDown();
            };
            for (int number = 0; number < MESSAGES; number++)
                publisher.publish(message(publisher, "" + number).property("number", number), callback);
            nowhere.publish(message(nowhere, "nowhere"), callback);
            if (!all.await(WITHIN_S, TimeUnit.SECONDS)) return "outcomes are missing";
        }
        long accepted = outcomes.stream().filter(each -> each == Publisher.Status.ACCEPTED).count();
        long released = outcomes.stream().filter(each -> each == Publisher.Status.RELEASED).count();
        return accepted + " " + released + " " + management.queueInfo(name).messageCount();
    }

    static Message message(Publisher publisher, String body) {
        return publisher.message(body.getBytes(StandardCharsets.UTF_8)).messageId(body).subject("subject");
    }

    static String text(Message message) {
        return new String(message.body(), StandardCharsets.UTF_8);
    }

    // Every tenth message is requeued once, every twentieth discarded then.
    static String settled() throws Exception {
        var order = Collections.synchronizedList(new ArrayList<Integer>());
        var again = Collections.synchronizedSet(new java.util.HashSet<Integer>());
        var all = new CountDownLatch(MESSAGES);
        Consumer.MessageHandler handler = (context, message) -> {
            int number = (int) message.property("number");
            if (number % 10 == 0 && again.add(number)) {
                context.requeue();
                return;
            }
            order.add(number);
            if (number % 20 == 0) context.discard();
            else context.accept();
            all.countDown();
        };
        try (Consumer consumer = connection.consumerBuilder().queue(name).initialCredits(20).messageHandler(handler).build()) {
            if (!all.await(WITHIN_S, TimeUnit.SECONDS)) return "only " + order.size();
        }
        var dead = new LinkedBlockingQueue<Message>();
        try (Consumer consumer = connection.consumerBuilder().queue(name + "-dead").messageHandler((context, message) -> {
            dead.add(message);
            context.accept();
        }).build()) {
            for (int count = 0; count < MESSAGES / 20; count++) {
                var message = dead.poll(WITHIN_S, TimeUnit.SECONDS);
                if (message == null) return "only " + count + " dead letters";
                if (!"rejected".equals(message.annotation("x-first-death-reason"))) return "a strange death";
            }
        }
        return new java.util.HashSet<>(order).size() + " " + management.queueInfo(name).messageCount();
    }

    static String stream() throws Exception {
        management.queue(name + "-stream").stream().queue().declare();
        var confirmed = new CountDownLatch(MESSAGES);
        try (Publisher publisher = connection.publisherBuilder().queue(name + "-stream").build()) {
            for (int number = 0; number < MESSAGES; number++)
                publisher.publish(message(publisher, "" + number), context -> confirmed.countDown());
            if (!confirmed.await(WITHIN_S, TimeUnit.SECONDS)) return "confirms are missing";
        }
        var found = new LinkedBlockingQueue<String>();
        Consumer.MessageHandler handler = (context, message) -> {
            found.add(message.annotation("x-stream-offset") + "=" + text(message));
            context.accept();
        };
        try (
            Consumer first = connection.consumerBuilder().queue(name + "-stream").messageHandler(handler)
                .stream().offset(StreamOffsetSpecification.FIRST).builder().build()
        ) {
            var head = found.poll(WITHIN_S, TimeUnit.SECONDS);
            for (int count = 1; count < MESSAGES; count++)
                if (found.poll(WITHIN_S, TimeUnit.SECONDS) == null) return "only " + count;
            found.clear();
            try (
                Consumer later = connection.consumerBuilder().queue(name + "-stream").messageHandler(handler)
                    .stream().offset(150).builder().build()
            ) {
                return head + ", " + found.poll(WITHIN_S, TimeUnit.SECONDS);
            }
        }
    }

    static String answered() throws Exception {
        management.queue(name + "-requests").classic().queue().declare();
        try (
            var responder = connection.responderBuilder().requestQueue(name + "-requests")
                .handler((context, request) -> context.message(("answer to " + text(request)).getBytes(StandardCharsets.UTF_8)))
                .build();
            var requester = connection.requesterBuilder().requestAddress().queue(name + "-requests").requester()
                .requestTimeout(Duration.ofSeconds(WITHIN_S)).build()
        ) {
            var request = requester.message("question".getBytes(StandardCharsets.UTF_8));
            return text(requester.publish(request).get(WITHIN_S, TimeUnit.SECONDS));
        }
    }

    static String refused() {
        var found = new ArrayList<String>();
        List<Runnable> attempts = List.of(
            () -> connection.consumerBuilder().queue(name + "-none").messageHandler((context, message) -> {}).build(),
            () -> connection.publisherBuilder().exchange(name + "-none").build(),
            () -> management.queueInfo(name + "-none"),
            () -> management.queue(name).classic().queue().declare(),
            () -> management.queuePurge(name + "-stream")
        );
        for (Runnable attempt : attempts) {
            try {
                attempt.run();
                found.add("nothing");
            } catch (AmqpException error) {
                found.add(error.getClass().getSimpleName());
            }
        }
        return String.join(" ", found);
    }
}

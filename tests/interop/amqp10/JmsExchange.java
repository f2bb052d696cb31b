// What a program with JMS does over AMQP 1.0: one part per word on the command line, one line of output each.

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;

public class JmsExchange {
    static final long WITHIN_MS = 20_000;

    static Connection connection;
    static String name;

    public static void main(String[] arguments) throws Exception {
        name = arguments[1];
        var factory = new JmsConnectionFactory("guest", "guest", arguments[0]);
        connection = factory.createConnection();
        connection.setExceptionListener(error -> System.err.println("asynchronous: " + error));
        connection.start();
        try {
            System.out.println("queue " + queue());
            System.out.println("browser " + browser());
            System.out.println("transacted " + transacted());
            System.out.println("topic " + topic());
            System.out.println("temporary " + temporary());
            System.out.println("subscriptions " + subscriptions(factory));
            System.out.println("refused " + refused());
        } finally {
            connection.close();
        }
    }

    static Session session() throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    static void send(Session session, jakarta.jms.Destination to, int count) throws JMSException {
        MessageProducer producer = session.createProducer(to);
        for (int number = 0; number < count; number++) {
            TextMessage message = session.createTextMessage("text " + number);
            message.setIntProperty("number", number);
            message.setJMSType("kind");
            producer.send(message);
        }
        producer.close();
    }

    static String text(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(WITHIN_MS);
        return message == null ? "nothing" : message.getBody(String.class);
    }

    static String queue() throws JMSException {
        Session session = session();
        Queue queue = session.createQueue(name);
        send(session, queue, 3);
        MessageConsumer consumer = session.createConsumer(queue);
        String found = text(consumer) + ", " + text(consumer) + ", " + text(consumer);
        session.close();
        return found;
    }

    static String browser() throws JMSException {
        Session session = session();
        Queue queue = session.createQueue(name);
        send(session, queue, 10);
        List<String> found = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue, "number >= 7 AND JMSType = 'kind'")) {
            for (Object message : Collections.list(browser.getEnumeration())) {
                found.add(((Message) message).getBody(String.class));
            }
        }
        int all;
        try (QueueBrowser browser = session.createBrowser(queue)) {
            all = Collections.list(browser.getEnumeration()).size();
        }
        MessageConsumer consumer = session.createConsumer(queue);
        for (int number = 0; number < 10; number++) {
            text(consumer);
        }
        session.close();
        return found + " of " + all;
    }

    static String transacted() throws JMSException {
        Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
        Queue queue = session.createQueue(name);
        send(session, queue, 2);
        session.rollback();
        send(session, queue, 2);
        session.commit();
        MessageConsumer consumer = session.createConsumer(queue);
        text(consumer);
        session.rollback();
        String found = text(consumer) + ", " + text(consumer);
        session.commit();
        Message rest = consumer.receiveNoWait();
        session.close();
        return found + ", " + (rest == null ? "nothing" : "more");
    }

    static String topic() throws JMSException {
        Session session = session();
        Topic topic = session.createTopic(name + ".topic");
        send(session, topic, 1);
        MessageConsumer all = session.createConsumer(topic);
        MessageConsumer some = session.createConsumer(topic, "number = 1");
        send(session, topic, 2);
        String found = text(all) + ", " + text(all) + "; " + text(some);
        session.close();
        return found;
    }

    static String temporary() throws JMSException {
        Session session = session();
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer answers = session.createConsumer(replies);
        Queue queue = session.createQueue(name);
        TextMessage request = session.createTextMessage("question");
        request.setJMSReplyTo(replies);
        session.createProducer(queue).send(request);
        Message asked = session.createConsumer(queue).receive(WITHIN_MS);
        TextMessage answer = session.createTextMessage("answer");
        answer.setJMSCorrelationID(asked.getJMSMessageID());
        session.createProducer(asked.getJMSReplyTo()).send(answer);
        Message answered = answers.receive(WITHIN_MS);
        boolean same = request.getJMSMessageID().equals(answered.getJMSCorrelationID());
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer other = session.createConsumer(topic);
        send(session, topic, 1);
        String found = answered.getBody(String.class) + " " + same + "; " + text(one) + ", " + text(other);
        session.close();
        return found;
    }

    // A durable subscription and a shared one gather messages while their program is away.
    static String subscriptions(JmsConnectionFactory factory) throws JMSException {
        List<String> found = new ArrayList<>();
        String topic = name + ".kept";
        for (int time = 0; time < 2; time++) {
            Connection other = factory.createConnection();
            other.setClientID("client of " + name);
            other.start();
            Session session = other.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageConsumer durable = session.createDurableSubscriber(session.createTopic(topic), "durable");
            MessageConsumer one = session.createSharedDurableConsumer(session.createTopic(topic), "shared");
            MessageConsumer two = session.createSharedDurableConsumer(session.createTopic(topic), "shared");
            MessageConsumer volatileOne = session.createSharedConsumer(session.createTopic(topic), "shared");
            if (time == 0) {
                send(session(), session.createTopic(topic), 1);
                found.add(text(durable));
                found.add(text(volatileOne));
                Message first = one.receive(1000);
                found.add(((TextMessage) (first == null ? two.receive(WITHIN_MS) : first)).getText());
            } else {
                found.add(text(durable) + " and " + text(durable));
                List<String> shared = new ArrayList<>();
                while (shared.size() < 2) {
                    for (MessageConsumer consumer : List.of(one, two)) {
                        Message message = consumer.receive(1000);
                        if (message != null) shared.add(((TextMessage) message).getText());
                    }
                }
                Collections.sort(shared);
                found.add(String.join(" and ", shared));
            }
            for (MessageConsumer consumer : List.of(durable, one, two, volatileOne)) consumer.close();
            if (time == 1) {
                session.unsubscribe("durable");
                session.unsubscribe("shared");
                try {
                    session.unsubscribe("durable");
                } catch (JMSException error) {
                    found.add(error.getClass().getSimpleName());
                }
            }
            other.close();
            if (time == 0) send(session(), session().createTopic(topic), 2);
        }
        return String.join(", ", found);
    }

    static String refused() throws JMSException {
        Session session = session();
        List<String> found = new ArrayList<>();
        try {
            session.createConsumer(session.createQueue(name), "number = 1");
        } catch (JMSException error) {
            found.add(error.getMessage());
        }
        return String.join("; ", found);
    }
}

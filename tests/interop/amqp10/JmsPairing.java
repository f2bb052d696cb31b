// A program with JMS that sends the messages of jms_messages() in pairing_cases.py to queues, and prints those of others:
// JmsPairing.java URL TO,... FROM,... COUNT. Each line is a queue's name and its messages as JSON, in the form of that module.

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageEOFException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.qpid.jms.JmsConnectionFactory;

public class JmsPairing {
    static final long WITHIN_MS = 20_000;

    static Session session;

    public static void main(String[] arguments) throws Exception {
        var factory = new JmsConnectionFactory("guest", "guest", arguments[0]);
        Connection connection = factory.createConnection();
        connection.start();
        try {
            session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            for (String queue : arguments[1].split(",")) send(queue);
            for (String queue : arguments[2].split(",")) {
                System.out.println(queue + " " + received(queue, Integer.parseInt(arguments[3])));
            }
        } finally {
            connection.close();
        }
    }

    static Map<String, Object> values() {
        var made = new LinkedHashMap<String, Object>();
        made.put("boolean", true);
        made.put("byte", Byte.MIN_VALUE);
        made.put("short", Short.MIN_VALUE);
        made.put("int", Integer.MIN_VALUE);
        made.put("long", Long.MIN_VALUE);
        made.put("float", -0.0f);
        made.put("double", Double.POSITIVE_INFINITY);
        made.put("string", "ü🚀");
        return made;
    }

    static void send(String queue) throws JMSException {
        MessageProducer producer = session.createProducer(session.createQueue(queue));
        for (String text : new String[] {"", "ü🚀", "x".repeat(1 << 20)}) producer.send(session.createTextMessage(text));
        for (int size : new int[] {1, 1 << 20}) {
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeBytes(new byte[size]);
            producer.send(bytes);
        }
        MapMessage map = session.createMapMessage();
        for (var each : values().entrySet()) map.setObject(each.getKey(), each.getValue());
        map.setChar("char", 'ü');
        map.setBytes("binary", new byte[] {0, -1});
        producer.send(map);
        StreamMessage stream = session.createStreamMessage();
        for (Object each : values().values()) stream.writeObject(each);
        producer.send(stream);
        TextMessage properties = session.createTextMessage("properties");
        for (var each : values().entrySet()) properties.setObjectProperty(each.getKey() + "_", each.getValue());
        properties.setJMSType("type");
        properties.setJMSCorrelationID("correlation");
        properties.setStringProperty("JMSXGroupID", "group");
        properties.setIntProperty("JMSXGroupSeq", 5);
        producer.setPriority(7);
        producer.send(properties);
        producer.close();
    }

    static String received(String queue, int count) throws JMSException {
        MessageConsumer consumer = session.createConsumer(session.createQueue(queue));
        List<String> messages = new ArrayList<>();
        while (messages.size() < count) {
            Message message = consumer.receive(WITHIN_MS);
            if (message == null) throw new IllegalStateException("no message " + messages.size() + " in " + queue);
            messages.add(written(message));
        }
        consumer.close();
        return messages.toString();
    }

    static String written(Message message) throws JMSException {
        var application = new ArrayList<String>();
        List<String> names = new ArrayList<>(Collections.list(names(message.getPropertyNames())));
        names.removeIf(name -> name.startsWith("JMSX"));
        for (String name : names) application.add(pair(quoted(name), value(message.getObjectProperty(name))));
        var properties = new TreeMap<String, Object>();
        properties.put("subject", message.getJMSType());
        properties.put("correlation-id", message.getJMSCorrelationID());
        properties.put("group-id", message.getStringProperty("JMSXGroupID"));
        List<String> fields = new ArrayList<>();
        for (var each : properties.entrySet()) {
            if (each.getValue() != null) fields.add(quoted(each.getKey()) + ": " + value(each.getValue()));
        }
        if (message.propertyExists("JMSXGroupSeq")) {
            int sequence = message.getIntProperty("JMSXGroupSeq");
            fields.add("\"group-sequence\": " + typed("uint", String.format("%08x", sequence)));
        }
        String priority = typed("ubyte", String.format("%02x", message.getJMSPriority()));
        return "{\"body\": " + body(message) + ", \"application\": " + application + ", \"properties\": {"
            + String.join(", ", fields) + "}, \"header\": {\"priority\": " + priority + "}}";
    }

    static String body(Message message) throws JMSException {
        if (message instanceof TextMessage text) return pair(quoted("value"), value(text.getText()));
        if (message instanceof BytesMessage bytes) {
            byte[] content = new byte[(int) bytes.getBodyLength()];
            bytes.readBytes(content);
            return pair(quoted("data"), "[" + quoted(hexadecimal(content)) + "]");
        }
        List<String> items = new ArrayList<>();
        if (message instanceof MapMessage map) {
            for (String name : Collections.list(names(map.getMapNames()))) {
                items.add(pair(value(name), value(map.getObject(name))));
            }
            return pair(quoted("value"), pair(quoted("map"), items.toString()));
        }
        if (!(message instanceof StreamMessage stream)) return quoted(message.getClass().getName());
        try {
            while (true) items.add(value(stream.readObject()));
        } catch (MessageEOFException end) {
            return pair(quoted("sequence"), items.toString());
        }
    }

    @SuppressWarnings("unchecked")
    static java.util.Enumeration<String> names(java.util.Enumeration<?> given) {
        return (java.util.Enumeration<String>) given;
    }

    static String value(Object given) {
        if (given == null) return typed("null", "");
        if (given instanceof Boolean flag) return typed("boolean", flag ? "01" : "00");
        if (given instanceof Byte number) return typed("byte", String.format("%02x", number));
        if (given instanceof Short number) return typed("short", String.format("%04x", number));
        if (given instanceof Integer number) return typed("int", String.format("%08x", number));
        if (given instanceof Long number) return typed("long", String.format("%016x", number));
        if (given instanceof Float number) return typed("float", String.format("%08x", Float.floatToRawIntBits(number)));
        if (given instanceof Double number) return typed("double", String.format("%016x", Double.doubleToRawLongBits(number)));
        if (given instanceof Character letter) return typed("char", String.format("%08x", (int) letter));
        if (given instanceof byte[] bytes) return typed("binary", hexadecimal(bytes));
        return typed(given instanceof String ? "string" : given.getClass().getName(), given.toString());
    }

    static String hexadecimal(byte[] bytes) {
        return java.util.HexFormat.of().formatHex(bytes);
    }

    static String typed(String type, String content) {
        return pair(quoted(type), quoted(content));
    }

    static String pair(String first, String second) {
        return "[" + first + ", " + second + "]";
    }

    // None of the texts has a quotation mark or a control character.
    static String quoted(String text) {
        return "\"" + text + "\"";
    }
}
